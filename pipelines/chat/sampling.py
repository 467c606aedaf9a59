"""The next token of each row, drawn the way its own request asks."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pipelines.protocol.chat import ChatSampling

FIRST_CANDIDATES = 256  # that are sorted for top_p; all are, when these don't reach it


@dataclass(slots=True)
class Draws:
    """How one row's tokens are drawn. Its numbers depend on its seed and on nothing else."""

    sampling: ChatSampling
    seed: int
    top_logprobs: int | None = None  # None: no logprobs at all
    counts: Counter[int] = field(default_factory=Counter)  # of the tokens it has drawn
    numbers: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = random.Random(self.seed)  # noqa: S311


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token; where they were asked for, its logprob and the likeliest tokens with theirs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def draw(logits: torch.Tensor, rows: Sequence[Draws], allowed: Sequence[torch.Tensor | None]) -> list[Drawn]:
    """One token for each row. `logits` is [rows, vocabulary] in float32, and is overwritten.

    `allowed` are bool masks over the vocabulary. Logprobs are the model's own, before anything was asked of them.
    """
    logprobs = [_logprobs(logits[i], row) for i, row in enumerate(rows)]
    for i, (row, mask) in enumerate(zip(rows, allowed, strict=True)):
        _adjust(logits[i], row)
        if mask is not None:
            known = mask[: logits.shape[-1]].to(logits.device)
            logits[i, : len(known)].masked_fill_(~known, -torch.inf)
            logits[i, len(known) :] = -torch.inf
    tokens = _choose(logits, rows)
    drawn = []
    for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
        row.counts[token] += 1
        drawn.append(_told(token, row, logprob))
    return drawn


def _logprobs(logits: torch.Tensor, row: Draws) -> torch.Tensor | None:
    return None if row.top_logprobs is None else torch.log_softmax(logits, dim=-1)


def _adjust(logits: torch.Tensor, row: Draws) -> None:
    """Bias and penalties, in place."""
    sampling = row.sampling
    changes = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in row.counts.items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            changes[token] = changes.get(token, 0.0) - penalty
    if changes:
        tokens = torch.tensor(list(changes), device=logits.device)
        logits[tokens] += torch.tensor(list(changes.values()), dtype=logits.dtype, device=logits.device)


def _choose(logits: torch.Tensor, rows: Sequence[Draws]) -> list[int]:
    """The likeliest where the temperature is 0, else by a number of the row's own."""
    tokens = logits.argmax(dim=-1)
    warm = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if warm:
        indices = torch.tensor(warm, device=logits.device)
        chosen = [rows[i] for i in warm]
        settings = torch.tensor(
            [[row.sampling.temperature, row.sampling.top_p, row.numbers.random()] for row in chosen],
            dtype=torch.float64,
            device=logits.device,
        )
        tokens[indices] = _sample(logits[indices], *settings.unbind(dim=1))
    return [int(token) for token in tokens.tolist()]


def _sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, numbers: torch.Tensor
) -> torch.Tensor:
    """By the inverse of the cumulative distribution, so that a row's token depends on its own numbers alone."""
    highest = logits.max(dim=-1, keepdim=True).values
    weights = torch.softmax((logits - highest).double() / temperature[:, None].clamp(min=1e-4), dim=-1)
    if bool((top_p < 1).any()):
        weights = torch.where((top_p < 1)[:, None], _nucleus(weights, top_p), weights)
    cumulative = weights.cumsum(dim=-1)
    reached = numbers[:, None] * cumulative[:, -1:]
    # `right` passes over tokens of no weight; the last token that has weight is the furthest that can be reached
    return torch.searchsorted(cumulative, reached, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)


def _nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest set of likeliest tokens that reaches top_p; the rest weighs nothing."""
    for count in (min(FIRST_CANDIDATES, weights.shape[-1]), weights.shape[-1]):
        values, tokens = weights.topk(count, dim=-1)
        before = values.cumsum(dim=-1) - values
        if bool((values.sum(dim=-1) >= top_p).all()):
            break
    kept = values * (before < top_p[:, None])
    kept[:, 0] = values[:, 0]  # top_p 0 is the likeliest one
    return torch.zeros_like(weights).scatter(-1, tokens, kept)


def _told(token: int, row: Draws, logprobs: torch.Tensor | None) -> Drawn:
    if logprobs is None or row.top_logprobs is None:
        return Drawn(token)
    values, tokens = logprobs.topk(row.top_logprobs)
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return Drawn(token, float(logprobs[token]), top)
