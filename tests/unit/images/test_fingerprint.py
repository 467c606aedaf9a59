"""Equal requests are known as equal, and no others; also by a server that knows more fields, or has other defaults."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.accounts.fingerprints import as_sent, fingerprint, may_be_same

JSON = st.recursive(st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
BODY = st.dictionaries(st.text(), JSON, max_size=5)


@given(BODY)
def test_neither_the_order_of_fields_nor_nulls_count(body: dict[str, object]) -> None:
    again = {"never sent": None, **dict(reversed(body.items())), "inside": {"nothing": None}}
    assert fingerprint(again, again, []) == fingerprint({**body, "inside": {}}, {**body, "inside": {}}, [])


@given(BODY, BODY)
def test_another_body_is_another_request(one: dict[str, object], other: dict[str, object]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    prints = [fingerprint(body, body, []) for body in (one, other)]
    assert (prints[0] == prints[1]) == may_be_same(*prints) == same


@pytest.mark.parametrize(
    "images", [[], [("image[0]", b"b")], [("image[0]", b"a"), ("image[1]", b"a")], [("mask", b"a")]]
)
def test_other_images_are_another_request(images: list[tuple[str, bytes | str]]) -> None:
    assert not may_be_same(fingerprint({}, {}, images), fingerprint({}, {}, [("image[0]", b"a")]))


def test_text_that_is_no_unicode_has_a_fingerprint_that_fills_its_column() -> None:
    assert len(fingerprint({"prompt": "\ud800"}, {}, [])) == 64


def test_the_same_body_is_the_same_request_whatever_it_means_to_a_later_version() -> None:
    body = {"prompt": "a star", "n": 1, "glow": 3}
    before, after = fingerprint(body, {"prompt": "a star"}, []), fingerprint(body, {"prompt": "a star", "glow": 3}, [])
    assert may_be_same(before, after)
    assert as_sent(before) == as_sent(after)  # without an Idempotency-Key it is found, too


def test_what_means_the_same_is_the_same_request_under_a_key() -> None:
    meant = {"prompt": "a star", "steps": 7}
    other_words = ({**meant, "n": 1}, {"prompt": "a star", "num_inference_steps": 7})
    assert all(may_be_same(fingerprint(meant, meant, []), fingerprint(words, meant, [])) for words in other_words)


@pytest.mark.parametrize("recorded", [None, "", "0" * 64, "1:" + "0" * 62, "3:" + "0" * 62])
def test_a_fingerprint_of_another_format_is_never_another_request(recorded: str | None) -> None:
    assert may_be_same(recorded, fingerprint({}, {}, []))
