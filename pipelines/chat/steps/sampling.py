"""The next token of each row, sampled by its own request's options."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pipelines.protocol.chat import ChatSampling

TOP_P_CANDIDATES = 256  # sorted for top_p; the whole vocabulary is sorted if they do not reach it


@dataclass(slots=True)
class SamplerState:
    """The sampling state of one row. Its random numbers depend on its seed and on nothing else."""

    sampling: ChatSampling
    seed: int
    top_logprobs: int | None = None  # None: no logprobs at all
    ends: tuple[int, ...] = ()  # tokens that end an answer
    prompt_tokens: frozenset[int] = frozenset()  # for the repetition penalty alone
    counts: Counter[int] = field(default_factory=Counter)  # of its tokens so far, for the penalties
    _numbers: random.Random = field(init=False)
    _number: float | None = None  # of the next token

    def __post_init__(self) -> None:
        self._numbers = random.Random(self.seed)  # noqa: S311

    @property
    def number(self) -> float:
        """Return the random number of the next token, from 0 to 1. It stays the same until `take`, as a step that ran
        out of memory is repeated."""
        if self._number is None:
            self._number = self._numbers.random()
        return self._number

    def take(self, token: int) -> None:
        """Count a sampled token for the penalties, and move on to the next random number."""
        self.counts[token] += 1
        self._number = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token. If logprobs were requested: its logprob, and the most likely tokens with theirs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(
    logits: torch.Tensor, rows: Sequence[SamplerState], masks: Sequence[torch.Tensor | None]
) -> list[SampledToken]:
    """Return a sampled token for each row, or, if that fails, sample none. `logits` is [rows, vocabulary] in float32,
    and is overwritten. `masks` are bool over the vocabulary, true for allowed tokens. Logprobs are the model's own,
    before bias, penalties and mask."""
    logprobs = [None if row.top_logprobs is None else logits[i].log_softmax(dim=-1) for i, row in enumerate(rows)]
    for i, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        _apply_bias_and_penalties(logits[i], row)
        if mask is None and row.counts.total() < row.sampling.min_tokens:
            logits[i, list(row.ends)] = -torch.inf
        if mask is not None:
            allowed = mask[: logits.shape[-1]].to(logits.device)
            logits[i, : len(allowed)].masked_fill_(~allowed, -torch.inf)
            logits[i, len(allowed) :] = -torch.inf
    tokens = _pick(logits, rows)
    sampled = [_sampled_token(token, row, own) for row, token, own in zip(rows, tokens, logprobs, strict=True)]
    for row, token in zip(rows, tokens, strict=True):
        row.take(token)
    return sampled


def _apply_bias_and_penalties(logits: torch.Tensor, row: SamplerState) -> None:
    """Apply a row's bias and penalties to its logits, in place."""
    sampling = row.sampling
    if sampling.repetition_penalty != 1.0 and (seen := row.prompt_tokens | row.counts.keys()):
        repeated = torch.tensor(sorted(seen), device=logits.device)
        values, penalty = logits[repeated], sampling.repetition_penalty
        logits[repeated] = torch.where(values > 0, values / penalty, values * penalty)  # as in CTRL, arXiv:1909.05858
    changes = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in row.counts.items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            changes[token] = changes.get(token, 0.0) - penalty
    if changes:
        tokens = torch.tensor(list(changes), device=logits.device)
        logits[tokens] += torch.tensor(list(changes.values()), dtype=logits.dtype, device=logits.device)


def _pick(logits: torch.Tensor, rows: Sequence[SamplerState]) -> list[int]:
    """Pick a token for each row: greedily at temperature 0, otherwise by the row's own random number."""
    tokens = logits.argmax(dim=-1)
    random_rows = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if random_rows:
        indices = torch.tensor(random_rows, device=logits.device)
        options = torch.tensor(
            [[rows[i].sampling.temperature, rows[i].sampling.top_p, rows[i].number] for i in random_rows],
            dtype=torch.float64,
            device=logits.device,
        )
        candidates = logits[indices]
        for position, i in enumerate(random_rows):
            _keep_likeliest(candidates[position], rows[i].sampling)
        tokens[indices] = _inverse_cdf(candidates, *options.unbind(dim=1))
    return [int(token) for token in tokens.tolist()]


def _keep_likeliest(logits: torch.Tensor, sampling: ChatSampling) -> None:
    """Apply top_k and min_p, in place: other tokens get no weight. min_p is of the tokens' probabilities at the
    temperature (arXiv:2407.01082)."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k).values[-1]
        logits.masked_fill_(logits < least, -torch.inf)
    if sampling.min_p > 0:
        margin = max(sampling.temperature, 1e-4) * math.log(sampling.min_p)
        logits.masked_fill_(logits < logits.max() + margin, -torch.inf)


def _inverse_cdf(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Sample by the inverse of the distribution function, so that a row's token depends on its own random numbers
    alone."""
    highest = logits.max(dim=-1, keepdim=True).values
    weights = torch.softmax((logits - highest).double() / temperature[:, None].clamp(min=1e-4), dim=-1)
    if bool((top_p < 1).any()):
        weights = torch.where((top_p < 1)[:, None], _nucleus(weights, top_p), weights)
    cumulative = weights.cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    # `right` skips tokens of zero weight; the result is clamped to the last token with weight
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)


def _nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of likeliest tokens that reaches top_p; the others get weight 0."""
    for count in (min(TOP_P_CANDIDATES, weights.shape[-1]), weights.shape[-1]):
        values, tokens = weights.topk(count, dim=-1)
        before = values.cumsum(dim=-1) - values
        if bool((values.sum(dim=-1) >= top_p).all()):
            break
    nucleus = values * (before < top_p[:, None])
    nucleus[:, 0] = values[:, 0]  # top_p 0 is greedy
    return torch.zeros_like(weights).scatter(-1, tokens, nucleus)


def _sampled_token(token: int, row: SamplerState, logprobs: torch.Tensor | None) -> SampledToken:
    if logprobs is None or row.top_logprobs is None:
        return SampledToken(token)
    values, tokens = logprobs.topk(row.top_logprobs)
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return SampledToken(token, float(logprobs[token]), top)
