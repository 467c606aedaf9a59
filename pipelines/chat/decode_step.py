"""From logits to what is said: the rows' next tokens are drawn, kept to their grammars, and handed to their answers."""

from collections.abc import Sequence as Many

import torch

from pipelines.chat.sampling import Drawn, draw
from pipelines.chat.sequence import Sequence


def take(rows: Many[Sequence], logits: torch.Tensor) -> None:
    """The rows' next tokens, out of their logits [rows, vocabulary] in float32, which are overwritten."""
    careful = {
        i: logits[i : i + 1].clone()
        for i, row in enumerate(rows)
        if row.constraint and row.constraint.careful(row.left)
    }
    allowed = [row.constraint.allowed() if row.constraint else None for row in rows]
    for i, drawn in enumerate(draw(logits, [row.draws for row in rows], allowed)):
        try:
            _go_on(rows[i], drawn, careful.get(i))
        except Exception as error:  # a grammar that has become too large fails its own request and no other
            rows[i].request.fail(error)


def _go_on(row: Sequence, drawn: Drawn, logits: torch.Tensor | None) -> None:
    settled = drawn if logits is None else _settle(row, drawn, logits)
    row.kept = len(row.tokens)
    row.tokens.append(settled.token)
    _say(row, settled)


def _settle(row: Sequence, drawn: Drawn, logits: torch.Tensor) -> Drawn:
    """The token that was drawn, or the one that has to come instead, out of logits [1, vocabulary]."""
    token = row.constraint.way_out(drawn.token, row.left) if row.constraint else None
    if token is None:
        return drawn
    row.draws.counts[drawn.token] -= 1
    only = torch.zeros(logits.shape[-1], dtype=torch.bool)
    only[token] = True
    return draw(logits, [row.draws], [only])[0]


def _say(row: Sequence, drawn: Drawn) -> None:
    request, answer = row.request, row.answer
    request.completion_tokens += 1
    if drawn.token in request.checkpoint.ends:
        answer.end("stop")
    else:
        if row.constraint:
            row.constraint.accept(drawn.token)
        request.reasoning_tokens += answer.thinking
        for delta in answer.feed(drawn):
            request.emit(delta)
        if row.constraint and (row.constraint.complete or (row.constraint.satisfied and not row.left)):
            answer.end("stop")
        elif not row.left:
            answer.end("length")
    if answer.reason:
        for delta in answer.finish():
            request.emit(delta)
        request.end_choice(row.choice, answer.reason)
