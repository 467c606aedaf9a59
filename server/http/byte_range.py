"""The Range header (RFC 9110, 14.2), of one range: a request for several gets the whole file, as it may."""

import re

RANGE = re.compile(r"(\d{0,18})-(\d{0,18})", re.ASCII)  # no file has more bytes, and Python reads no 4,301 digits


class InvalidRange(ValueError):
    """The header is malformed."""


class OutsideOfFile(ValueError):
    """The range begins after the end of the file."""


def read_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last; None for the whole file. Raises InvalidRange and
    OutsideOfFile."""
    unit, _, ranges = (header or "").partition("=")
    if header is None or unit.strip().lower() != "bytes" or "," in ranges:
        return None
    match = RANGE.fullmatch(ranges.strip())
    if match is None or match[0] == "-":
        raise InvalidRange("Malformed range header.")
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            raise InvalidRange("Range header: start must be less than end.")
    if start >= size:
        raise OutsideOfFile
    return start, end
