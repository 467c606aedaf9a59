"""The JSON of another server's events, however it writes its lines: with or without a blank line between two events,
one JSON over several lines, any of the three line ends, letters that other readers take for line ends. The work for
each is bounded, however long it is."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import from_json

from server.backends.answer_bounds import MAX_EVENT_BYTES, AnswerTooLong

Json = dict[str, Any]
LONG = 100_000  # characters that are read on a thread: all other streams would wait
MAX_TRIES = 4  # to read an event of the greatest length: it may end with any of its lines
LEAST_LOGPROB = -9999.0  # as OpenAI writes that of a token that can't be
BOM = b"\xef\xbb\xbf"


async def read_objects(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Json | str]]:
    """Yield the name of each event, "" if it has none, and its data: an object, or the text of what is none. Raises
    AnswerTooLong."""
    name, pending, tried = "", "", 0
    async for line in _lines(pieces):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data" or line.startswith("{"):
            pending += value.strip() if field == "data" else line
            tried += len(pending) if pending.endswith("}") else 0  # characters that were read for this event
            if max(len(pending), tried // MAX_TRIES) > MAX_EVENT_BYTES:
                raise AnswerTooLong("an event", MAX_EVENT_BYTES)
            found = await _read_object(pending) if pending.endswith("}") else None
            if found is not None or pending == "[DONE]":
                yield name, pending if found is None else found
                name, pending, tried = "", "", 0
        elif not line:
            if pending:
                yield name, pending
            name, pending, tried = "", "", 0
    if pending:
        yield name, pending


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines without their ends. Unlike those of `str`, the lines of `bytes` end with CR and LF alone. Raises
    AnswerTooLong for one without an end."""
    begun, length, is_first = list[bytes](), 0, True  # of the last line, what has come
    async for piece in pieces:
        begun.append(piece)
        length += len(piece)
        if length > MAX_EVENT_BYTES + len(piece):
            raise AnswerTooLong("a line", MAX_EVENT_BYTES)
        if not (b"\n" in piece or b"\r" in piece or begun[0].endswith(b"\r")):
            continue
        *lines, rest = [*b"".join(begun).splitlines(keepends=True), b""]
        if lines and not lines[-1].endswith(b"\n"):  # a CR may be the half of a line's end
            rest = lines.pop()
        begun, length = [rest], len(rest)
        for line in lines:
            yield _text(line, is_first)
            is_first = False
    for line in b"".join(begun).splitlines():
        yield _text(line, is_first)
        is_first = False


def _text(line: bytes, is_first: bool) -> str:
    return (line.removeprefix(BOM) if is_first else line).decode(errors="replace").rstrip("\r\n")


async def _read_object(text: str) -> Json | None:
    return json_object(text) if len(text) < LONG else await asyncio.to_thread(json_object, text)


def json_object(text: str | bytes) -> Json | None:
    """Return the object that a text is, None for any other text."""
    try:
        value = from_json(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    is_said = b"NaN" in text or b"Infinity" in text if isinstance(text, bytes) else "NaN" in text or "Infinity" in text
    return {name: _with_numbers(each) for name, each in value.items()} if is_said else value


def _with_numbers(value: Any) -> Any:
    """Return the value with what JSON can say in place of NaN and of infinities, which Python's servers write, and
    which no other client can read."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    if not isinstance(value, dict):
        return value
    known = {name: _with_numbers(each) for name, each in value.items()}
    if isinstance(value.get("logprob"), float) and known["logprob"] is None:
        known["logprob"] = LEAST_LOGPROB
    return known
