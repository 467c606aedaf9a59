"""Data URIs: their bytes, and those of bytes."""

import base64
import binascii
import io
import re
from urllib.parse import unquote_to_bytes

from server.backends.decoding.messages import ImageError

STARTS = {b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}  # of files; others are called PNG
PIECE = 1024**2  # characters; Python's other threads, which answer other calls, wait for the decoding of one

FROM_URLS = str.maketrans("-_", "+/")  # RFC 4648, section 5


def is_data_uri(text: str) -> bool:
    """Return whether a text is a data URI, and not a URL."""
    return text[:5].lower() == "data:"


def decode_data_uri(uri: str) -> bytes:
    """Decode a base64 data URI as browsers do: its data may be percent-encoded, and lack their padding; they may have
    the alphabet for URLs, too. Blocks. Raises ImageError."""
    comma = uri.find(",")
    if comma < 0 or not re.sub(r"\s", "", uri[:comma]).lower().endswith(";base64"):
        raise ImageError("A data URI must look like 'data:image/png;base64,...'.")
    decoded, rest = io.BytesIO(), ""
    try:
        for start in range(comma + 1, len(uri), PIECE):
            text = rest + "".join(_unquoted(uri, start, start + PIECE).translate(FROM_URLS).split())
            whole = 0 if "=" in text else len(text) // 4 * 4  # padding ends the data: what follows must be seen with it
            decoded.write(binascii.a2b_base64(text[:whole], strict_mode=True))
            rest = text[whole:]
            if len(rest) > 2 * PIECE:
                break
        padding = "=" * (-len(rest) % 4) if "=" not in rest else ""
        decoded.write(binascii.a2b_base64(rest + padding, strict_mode=True))
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"The data URI is not valid base64: {error}.") from error
    return decoded.getvalue()


def _unquoted(text: str, start: int, end: int) -> str:
    """Return a part of a percent-encoded text, each escape with the part in which it begins: that of the whole would
    take hundreds of bytes for each of its escapes."""
    first, last = _after_escape(text, start), _after_escape(text, end)
    part = text[first:last]
    return unquote_to_bytes(part).decode("latin-1") if "%" in part else part


def _after_escape(text: str, position: int) -> int:
    """Return the position, or the end of the escape that it is in."""
    begin = text.rfind("%", position - 2, position)
    return position if begin < 0 else begin + 3


def encode_data_uri(data: bytes) -> str:
    """Return an image file as a data URI. Blocks."""
    kind = next((kind for start, kind in STARTS.items() if data.startswith(start)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
