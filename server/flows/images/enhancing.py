"""Prompts made better before they are drawn: which calls want that, and what is drawn if the chat model fails.

The chat is a part of the image call: the call's price is what it is without, and the chat's tokens count for the key.
"""

import re
from dataclasses import replace
from typing import Any, Protocol

import structlog

from pipelines.protocol.images import ImageJob
from server.accounts.keys import Key
from server.catalog.images import ImageModel
from server.errors import ApiError
from server.flows.images.request import ImageRequest

DEFAULT_TOKENS = 256  # of a prompt, where the text encoder's limit is not known
# Tokenizers have most words of four Latin letters whole, and need up to three tokens for a letter of other writing.
LATIN, OTHER = re.compile(r"[A-Za-z\u00c0-\u024f]{1,4}"), 3
PIECES = re.compile(r"[A-Za-z\u00c0-\u024f]{1,4}|\S")
ENDS = ((".", "!", "?", "。", "！", "？"), (",", ";", "，", "；", "、"), (" ",))  # where a text is cut best first
LABEL = re.compile(r"^(?:(?:enhanced|improved|revised|rewritten|final|new)\s+)?prompt\s*:\s*", re.IGNORECASE)
QUOTES = ('""', "''", "“”", "``", "**", "「」")

log = structlog.stdlib.get_logger("darkroom.images")


class PromptWriter(Protocol):
    """A chat model that rewrites prompts."""

    def check(self, key: Key) -> None:
        """Raise ApiError if there is no such model, or none that this key may use."""

    async def write(self, key: Key, prompt: str, *, tokens: int, edits: bool, seed: int) -> tuple[str, str]:
        """Return another prompt, in about so many tokens, and the name of the model that wrote it. `edits`: the prompt
        says how an image is to be changed. Raises ApiError."""


def is_wanted(request: ImageRequest, model: ImageModel, key: Key, writer: PromptWriter) -> bool:
    """Return whether the call's prompt is rewritten. Raises ApiError for a request that asks for it in vain."""
    if request.enhance and request.scale is None:
        writer.check(key)
    return request.scale is None and (model.enhance if request.enhance is None else request.enhance)


async def enhanced(job: ImageJob, key: Key, writer: PromptWriter, tokens: int | None) -> ImageJob:
    """Return the job with a prompt of at most so many tokens, by estimate, and with both prompts in its metadata. If
    the chat model has none, it is the job as it was, and its metadata have the reason."""
    limit = tokens or DEFAULT_TOKENS
    try:
        text, name = await writer.write(key, job.prompt, tokens=limit, edits=bool(job.references), seed=job.seed)
    except ApiError as error:
        log.warning("a prompt was not enhanced", job=job.id, code=error.label, message=error.message)
        return _with_notes(job, enhance_failed=error.message)
    prompt = fitted(cleaned(text), limit)
    if not prompt:
        return _with_notes(job, enhance_failed=f"The model `{name}` wrote no prompt.")
    noted = _with_notes(job, prompt=prompt, original_prompt=job.prompt, enhanced_by=name)
    return replace(noted, prompt=prompt)


def cleaned(text: str) -> str:
    """Return the prompt of an answer: one line, without a label or quotes around it."""
    line = LABEL.sub("", " ".join(text.replace("```", " ").split()).strip("* ")).strip("* ")
    while len(line) > 1 and line[0] + line[-1] in QUOTES:
        line = line[1:-1].strip()
    return line


def fitted(text: str, tokens: int) -> str:
    """Return as much of a prompt as is at most so many tokens, by a careful estimate: whole sentences if they are more
    than half of that, else whole parts of one, else whole words."""
    left = tokens
    for piece in PIECES.finditer(text):
        left -= 1 if LATIN.fullmatch(piece[0]) or piece[0].isascii() else OTHER
        if left < 0:
            return _cut(text[: piece.start()])
    return text


def _cut(text: str) -> str:
    for marks in ENDS:
        end = max(text.rfind(mark) for mark in marks)
        if 2 * end > len(text):
            return text[: end + 1].rstrip(" ,;，；、")
    return text


def _with_notes(job: ImageJob, **notes: Any) -> ImageJob:
    return replace(job, metadata={**job.metadata, **notes})
