"""The bytes of a data URI."""

import base64
import binascii

from server.backends.decoding.messages import PictureError


def decode_data_uri(uri: str) -> bytes:
    """The bytes of a base64 data URI. Raises PictureError."""
    head, comma, payload = uri.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise PictureError("A data URI must look like 'data:image/png;base64,...'.")
    try:
        return base64.b64decode("".join(payload.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"The data URI is not valid base64: {error}.") from error
