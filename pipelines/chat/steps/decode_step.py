"""From logits to deltas: sample the rows' next tokens, hold them to their grammars, and emit the deltas that they
complete."""

import torch

from pipelines.chat.steps.sampling import SampledToken, sample
from pipelines.chat.steps.sequence import Sequence
from pipelines.device.failures import is_device_error


def sample_step(rows: list[Sequence], logits: torch.Tensor) -> None:
    """Append the rows' next tokens, out of their logits [rows, vocabulary] in float32, which are overwritten. Once they
    are sampled nothing needs the device's memory any more: a step that ran out of it is repeated."""
    original = {
        i: logits[i : i + 1].to("cpu", copy=True)
        for i, row in enumerate(rows)
        if row.constraint and row.constraint.near_limit(row.remaining_tokens)
    }
    masks = [_mask(row, logits.shape[-1]) for row in rows]
    for i, sampled in enumerate(sample(logits, [row.sampler for row in rows], masks)):
        try:
            _append(rows[i], sampled, original.get(i))
        except BaseException as error:  # a grammar too large, or a panic in its library, fails its own request alone
            if is_device_error(error):
                raise
            rows[i].request.fail(error)


def _mask(row: Sequence, vocab_size: int) -> torch.Tensor | None:
    """Return the tokens that may come, as bools over the vocabulary; None for all."""
    mask = row.constraint.token_mask() if row.constraint else None
    token = row.budget.due(thinking=row.output.in_reasoning) if row.budget else None
    if token is None or not (mask is None or mask[token]):
        return mask
    return _only(token, vocab_size)


def _only(token: int, vocab_size: int) -> torch.Tensor:
    only = torch.zeros(vocab_size, dtype=torch.bool)
    only[token] = True
    return only


def _append(row: Sequence, sampled: SampledToken, logits: torch.Tensor | None) -> None:
    if logits is not None:
        sampled = _keep_closable(row, sampled, logits)
    row.num_cached_tokens = len(row.tokens)
    row.tokens.append(sampled.token)
    _emit(row, sampled)


def _keep_closable(row: Sequence, sampled: SampledToken, logits: torch.Tensor) -> SampledToken:
    """Return the sampled token, or the one that has to come instead, out of logits [1, vocabulary]."""
    token = row.constraint.closing_token(sampled.token, row.remaining_tokens) if row.constraint else None
    if token is None:
        return sampled
    row.output.was_cut = True
    row.sampler.counts[sampled.token] -= 1
    return sample(logits, [row.sampler], [_only(token, logits.shape[-1])])[0]


def _emit(row: Sequence, sampled: SampledToken) -> None:
    request, output = row.request, row.output
    request.completion_tokens += 1
    if sampled.token in request.ends:
        output.end("stop")
    else:
        if row.constraint:
            row.constraint.accept(sampled.token)
        request.reasoning_tokens += output.in_reasoning
        if row.budget:
            row.budget.took(sampled.token, thinking=output.in_reasoning)
        for delta in output.feed(sampled):
            request.emit(delta)
        if row.constraint and row.constraint.complete:
            output.end("stop")
        elif not row.remaining_tokens:
            output.end("length")
    if output.finish_reason:
        for delta in output.flush():
            request.emit(delta)
        request.finish_choice(row.choice, output.finish_reason, output.stop)
