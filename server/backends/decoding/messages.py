"""The messages of the server and a decoder over a socket pair.

A request is a header, a JSON text and the file's bytes; an answer is a header and a JSON text. No pickle: a decoder
reads hostile files, so the server does not trust its answers. Pixels pass through a file.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, Literal

REQUEST = struct.Struct(">IQ")  # the lengths of the JSON text and of the file
ANSWER = struct.Struct(">I")
MAX_ANSWER_BYTES = 64 * 1024
MAX_PX = 64_000_000  # of a file that a decoder reads, as it says of itself
ImageErrorCode = Literal["invalid_image_file", "image_too_large"]
Json = Mapping[str, Any]


class ImageError(Exception):
    """A file that can't be decoded or is too large; the message is for the caller."""

    def __init__(self, message: str, code: ImageErrorCode = "invalid_image_file") -> None:
        super().__init__(message)
        self.code = code


def request_head(task: Json, size_bytes: int) -> bytes:
    """Encode the task and the file's length, which precede the file's bytes in a request to the decoder process."""
    text = json.dumps(task).encode()
    return REQUEST.pack(len(text), size_bytes) + text


def answer(values: Json) -> bytes:
    """Encode an answer as the decoder process sends it: its length, then JSON."""
    text = json.dumps(values).encode()
    return ANSWER.pack(len(text)) + text
