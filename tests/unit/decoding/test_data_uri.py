"""Data URIs."""

import base64

import pytest

from server.backends.decoding.data_uri import decode_data_uri
from server.backends.decoding.messages import PictureError


def test_data_uris() -> None:
    assert decode_data_uri("data:image/png;base64," + base64.b64encode(b"abc").decode()) == b"abc"
    for bad in ("data:image/png;base64,@@", "data:image/png,abc", "data:", "data:;base64,a"):
        with pytest.raises(PictureError):
            decode_data_uri(bad)
