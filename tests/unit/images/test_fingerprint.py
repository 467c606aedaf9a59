"""Equal requests are known as equal, and no others."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.flows.fingerprint import fingerprint
from server.flows.references import Reference

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
PARAMETERS = st.dictionaries(st.text(), JSON, max_size=5)


@given(PARAMETERS)
def test_the_order_of_parameters_does_not_count(parameters: dict[str, object]) -> None:
    assert fingerprint(dict(reversed(parameters.items())), []) == fingerprint(parameters, [])


@given(PARAMETERS, PARAMETERS)
def test_other_parameters_are_another_request(one: dict[str, object], other: dict[str, object]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint(one, []) == fingerprint(other, [])) == same


@pytest.mark.parametrize(
    "images",
    [
        [],
        [Reference("image[0]", b"b")],
        [Reference("image[0]", b"a"), Reference("image[1]", b"a")],
        [Reference("mask", b"a")],
    ],
)
def test_other_images_are_another_request(images: list[Reference]) -> None:
    assert fingerprint({}, images) != fingerprint({}, [Reference("image[0]", b"a")])


def test_text_that_is_no_unicode_has_a_fingerprint_too() -> None:
    assert len(fingerprint({"prompt": "\ud800"}, [])) == 64
