"""A look at a JSON body before it is parsed: 60 MB of empty arrays would become 2 GB of objects, and stall the server.

Parsing holds Python's interpreter lock from beginning to end, on whatever thread it runs. Its cost is bounded here by
counts that are cheap to make: values, nesting, and characters that are slow to read. A long string, such as an image as
a data URI, costs little. Pure.
"""

from collections.abc import Iterator
from typing import ClassVar

from server.errors import BadRequest

MAX_VALUES = 100_000
MAX_DEPTH = 100  # less than JSON libraries can write
MAX_ESCAPES = 2_000_000  # each is read by itself; a context of a million tokens in Chinese has fewer
MAX_BETWEEN_STRINGS = 8 * 1024**2  # bytes of numbers and white space, which are read one by one too
SLICE_BYTES = 256 * 1024  # looked at in one go: the interpreter lock is free in between

OPENING, CLOSING, COMMA = b"[{", b"]}", b","
NOT_BRACKETS = bytes(sorted(set(range(256)) - set(OPENING + CLOSING)))


class JsonTooComplex(BadRequest):
    """A body that would cost too much to parse."""

    default_code: ClassVar[str | None] = "json_too_complex"


def check_shape(raw: bytes | bytearray) -> None:
    """Check the size and nesting of a JSON text. Raises JsonTooComplex. Text that is no JSON may pass: the parser reads
    no further than to its first fault."""
    values = escapes = between = depth = 0
    is_inside = False  # a string
    for piece in _slices(raw):
        text, removed = _without_escapes(piece)
        parts = text.split(b'"')
        outside = b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0
        brackets = outside.translate(None, NOT_BRACKETS)
        escapes += removed
        between += len(outside)
        values += len(outside) - len(outside.translate(None, OPENING + COMMA))
        if values > MAX_VALUES:
            raise _too_complex(f"more than {MAX_VALUES:,} values. Send less in one request")
        if escapes > MAX_ESCAPES:
            raise _too_complex(f"more than {MAX_ESCAPES:,} escaped characters. Send text as UTF-8, without \\u")
        if between > MAX_BETWEEN_STRINGS:
            raise _too_complex(f"more than {MAX_BETWEEN_STRINGS:,} bytes of numbers and white space. Send it compactly")
        for bracket in brackets:
            depth += 1 if bracket in OPENING else -1
            if depth > MAX_DEPTH:
                raise _too_complex(f"values that are nested more than {MAX_DEPTH} levels deep. Send flatter ones")
            if depth < 0:
                return  # no JSON


def _slices(raw: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """Yield pieces that end after a whole escape sequence."""
    start = 0
    while start < len(raw):
        piece = raw[start : start + SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = raw[start : start + SLICE_BYTES + 1]
        yield piece
        start += len(piece)


def _without_escapes(piece: bytes | bytearray) -> tuple[bytes | bytearray, int]:
    """Return the text without escaped quotes and backslashes, and how many escapes of any kind it had. Of the others a
    backslash is left, which has no effect on where strings end."""
    if b"\\" not in piece:
        return piece, 0
    unpaired = piece.replace(b"\\\\", b"")  # from the left, so that an odd backslash is the last one of its row
    text = unpaired.replace(b'\\"', b"")
    return text, (len(piece) - len(text)) // 2 + text.count(b"\\")


def _too_complex(what: str) -> JsonTooComplex:
    return JsonTooComplex(f"The JSON body of your request has {what}.")
