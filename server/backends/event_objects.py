"""The JSON of another server's events, however it writes its lines: with or without a blank line between two events,
one JSON over several lines, any of the three line ends, letters that other readers take for line ends."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import from_json

Json = dict[str, Any]
BOM = b"\xef\xbb\xbf"


async def read_objects(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Json | str]]:
    """Yield the name of each event, "" if it has none, and its data: an object, or the text of what is none."""
    name, pending = "", ""
    async for line in _lines(pieces):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data" or line.startswith("{"):
            pending += value.strip() if field == "data" else line
            if (found := json_object(pending)) is not None or pending == "[DONE]":
                yield name, pending if found is None else found
                name, pending = "", ""
        elif not line:
            if pending:
                yield name, pending
            name, pending = "", ""
    if pending:
        yield name, pending


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines without their ends. Unlike those of `str`, the lines of `bytes` end with CR and LF alone."""
    rest, is_first = b"", True
    async for piece in pieces:
        *lines, rest = [*(rest + piece).splitlines(keepends=True), b""]
        if lines and not lines[-1].endswith(b"\n"):  # a CR may be the half of a line's end
            rest = lines.pop()
        for line in lines:
            yield _text(line, is_first)
            is_first = False
    for line in rest.splitlines():
        yield _text(line, is_first)
        is_first = False


def _text(line: bytes, is_first: bool) -> str:
    return (line.removeprefix(BOM) if is_first else line).decode(errors="replace").rstrip("\r\n")


def json_object(text: str | bytes) -> Json | None:
    """Return the object that a text is, None for any other text."""
    try:
        value = from_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
