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
    if "%" in uri:
        uri = uri[: comma + 1] + unquote_to_bytes(uri[comma + 1 :]).decode("latin-1")
    decoded, rest = io.BytesIO(), ""
    try:
        for start in range(comma + 1, len(uri), PIECE):
            text = rest + "".join(uri[start : start + PIECE].translate(FROM_URLS).split())
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


def encode_data_uri(data: bytes) -> str:
    """Return an image file as a data URI. Blocks."""
    kind = next((kind for start, kind in STARTS.items() if data.startswith(start)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
