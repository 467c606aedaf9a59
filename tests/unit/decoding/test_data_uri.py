"""Data URIs."""

import base64
import random
import tracemalloc
from urllib.parse import quote

import pytest

from server.backends.decoding import data_uri
from server.backends.decoding.data_uri import decode_data_uri
from server.backends.decoding.messages import ImageError


@pytest.mark.parametrize("size", range(0, 40))
def test_a_data_uri_is_decoded_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_uri, "PIECE", 8)
    data = random.Random(size).randbytes(size)
    text = base64.b64encode(data).decode()
    assert decode_data_uri(f"data:image/png;base64,{text}") == data
    assert decode_data_uri("data:image/png;base64," + " \n".join(text)) == data


@pytest.mark.parametrize("size", range(0, 40))
def test_a_data_uri_is_read_as_browsers_read_it(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without padding, percent-encoded, with blanks in its type; and in the alphabet for URLs."""
    monkeypatch.setattr(data_uri, "PIECE", 8)
    data = random.Random(size).randbytes(size)
    text = base64.b64encode(data).decode()
    for written in (text.rstrip("="), quote(text, safe=""), base64.urlsafe_b64encode(data).decode().rstrip("=")):
        assert decode_data_uri(f"data:image/png; base64,{written}") == data


@pytest.mark.parametrize("piece", [8, 1024])
@pytest.mark.parametrize(
    "bad",
    [
        "data:image/png;base64,@@",
        "data:image/png,abc",
        "data:",
        "data:;base64,a",
        "data:;base64,é",
        "data:;base64," + "abcd" * 5 + "a",
        "data:;base64,YWJjZA==" + "abcd" * 5,
        "data:;base64,abcdefgh=" + "a" * 40,
    ],
)
def test_what_is_not_base64_is_refused(bad: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_uri, "PIECE", piece)
    with pytest.raises(ImageError):
        decode_data_uri(bad)


def test_escapes_take_no_more_than_their_own_size() -> None:
    """Each escape was an object of its own: 20 MB of them took 1.5 GB."""
    text = "data:image/png;base64," + "%41" * 2**22
    tracemalloc.start()
    assert len(decode_data_uri(text)) == 3 * 2**20
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 128 * 2**20, most


@pytest.mark.parametrize("bad", ["%4", "%", "YQ%%3D", "%2541", "%zz"])
def test_an_escape_that_is_none_is_refused(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for piece in range(4, 12):
        monkeypatch.setattr(data_uri, "PIECE", piece)
        with pytest.raises(ImageError):
            decode_data_uri(f"data:;base64,YWJj{bad}")
