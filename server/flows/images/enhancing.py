"""Prompts made better before they are drawn: which calls want that, and what is drawn if the chat model fails.

The chat is a part of the image call: the call's price is what it is without, and the chat's tokens count for the key.
"""

import re
from dataclasses import replace
from typing import Any, Protocol

import structlog

from pipelines.protocol.images import ImageJob
from pipelines.protocol.messages import Capabilities
from server.accounts.keys import Key
from server.catalog.images import ImageModel
from server.errors import ApiError
from server.flows.images.request import ImageRequest

DEFAULT_TOKENS = 256  # of a prompt, where the text encoder's limit is not known
MARGIN = 0.95  # of the part of a prompt that is read: tokens are not of one length
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


def should_enhance(request: ImageRequest, model: ImageModel, key: Key, writer: PromptWriter) -> bool:
    """Return whether the call's prompt is rewritten. Raises ApiError for a request that asks for it in vain."""
    if request.enhance and request.scale is None:
        writer.check(key)
    return request.scale is None and (model.enhance if request.enhance is None else request.enhance)


async def enhance_prompt(job: ImageJob, key: Key, writer: PromptWriter, tokens: int | None) -> ImageJob:
    """Return the job with another prompt, and with both in its metadata. If the chat model has none, it is the job as
    it was, and its metadata have the reason. `tokens`: about how long the prompt may be."""
    try:
        text, name = await writer.write(
            key, job.prompt, tokens=tokens or DEFAULT_TOKENS, edits=bool(job.references), seed=job.seed
        )
    except ApiError as error:
        log.warning("a prompt was not enhanced", job=job.id, code=error.label, message=error.message)
        return _with_notes(job, enhance_failed=error.message)
    if not (prompt := clean_prompt(text)):
        return _with_notes(job, enhance_failed=f"The model `{name}` wrote no prompt.")
    return _with_prompt(_with_notes(job, original_prompt=job.prompt, enhanced_by=name), prompt)


def should_shorten(job: ImageJob, capabilities: Capabilities | None) -> bool:
    """Return whether the job has an enhanced prompt, of which what is too long for the text encoders can be cut off."""
    can_refuse = capabilities is not None and "refuse" in capabilities.long_prompts
    return can_refuse and "original_prompt" in job.metadata and job.sampling.long_prompt != "chunk"


def shorten_prompt(job: ImageJob, read_part: float) -> ImageJob:
    """Return the job with the beginning of its prompt, of which so much was read."""
    length = min(int(len(job.prompt) * read_part * MARGIN), len(job.prompt) - 1)
    return _with_prompt(job, cut_to(job.prompt, max(1, length)))


def clean_prompt(text: str) -> str:
    """Return the prompt of an answer: one line, without a label or quotes around it."""
    line = LABEL.sub("", " ".join(text.replace("```", " ").split()).strip("* ")).strip("* ")
    while len(line) > 1 and line[0] + line[-1] in QUOTES:
        line = line[1:-1].strip()
    return line


def cut_to(text: str, length: int) -> str:
    """Return at most so many characters of a text: whole sentences if they are more than half of that, else whole parts
    of one, else whole words."""
    head = text[:length]
    for marks in ENDS:
        end = max(head.rfind(mark) for mark in marks)
        if 2 * end > length:
            return head[: end + 1].rstrip(" ,;，；、")
    return head


def _with_prompt(job: ImageJob, prompt: str) -> ImageJob:
    return replace(_with_notes(job, prompt=prompt), prompt=prompt)


def _with_notes(job: ImageJob, **notes: Any) -> ImageJob:
    return replace(job, metadata={**job.metadata, **notes})
