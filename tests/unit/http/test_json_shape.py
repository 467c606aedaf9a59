"""What is counted in a body before it is parsed agrees with a reader that goes through it byte by byte."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.schemas import json_shape
from server.schemas.json_shape import JsonTooComplex, check_shape
from server.schemas.validation import parse_json

TEXT = st.text(st.sampled_from('"\\[]{},: /aé\n\u2028\U0001f600'), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30)
MIB = 1024**2


def count(raw: bytes) -> dict[str, int]:
    """Values, escapes, bytes outside of strings and levels, up to the first bracket that closes nothing."""
    found = {"MAX_VALUES": 0, "MAX_ESCAPES": 0, "MAX_BETWEEN_STRINGS": 0, "MAX_DEPTH": 0}
    inside, depth, position = False, 0, 0
    while position < len(raw) and depth >= 0:
        byte = raw[position : position + 1]
        position += 1
        if byte == b"\\":
            found["MAX_ESCAPES"] += 1
            position += raw[position : position + 1] in (b'"', b"\\")
        elif byte == b'"':
            inside = not inside
        elif not inside:
            found["MAX_BETWEEN_STRINGS"] += 1
            found["MAX_VALUES"] += byte in (b"[", b"{", b",")
            depth += (byte in (b"[", b"{")) - (byte in (b"]", b"}"))
            found["MAX_DEPTH"] = max(found["MAX_DEPTH"], depth)
    return found


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.integers(1, 9))
def test_every_count_is_that_of_a_slow_reader(value: Any, escaped: bool, indent: int | None, slice_bytes: int) -> None:
    raw = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "SLICE_BYTES", slice_bytes)
        for limit, amount in count(raw).items():
            with pytest.MonkeyPatch.context() as bounds:
                bounds.setattr(json_shape, limit, amount)
                check_shape(raw)
                check_shape(bytearray(raw))
                if amount:
                    bounds.setattr(json_shape, limit, amount - 1)
                    with pytest.raises(JsonTooComplex):
                        check_shape(raw)


@given(st.text(st.sampled_from('"\\[{,a'), max_size=40).map(str.encode), st.integers(1, 9))
def test_quotes_and_backslashes_of_any_text_are_read_alike(raw: bytes, slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "SLICE_BYTES", slice_bytes)
        values = count(raw)["MAX_VALUES"]
        patch.setattr(json_shape, "MAX_VALUES", values)
        check_shape(raw)
        if values:
            patch.setattr(json_shape, "MAX_VALUES", values - 1)
            with pytest.raises(JsonTooComplex):
                check_shape(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"zz":[' + b"[]," * 20 * MIB + b"[]]}", "values"),
        (b'{"zz":"' + b'\\"' * 20 * MIB + b'"}', "escaped"),
        (b'{"zz":"' + b"\\u00e9" * 10 * MIB + b'"}', "escaped"),
        (b'{"zz":' + b" " * 60 * MIB + b"1}", "white space"),
        (b'{"zz":1.' + b"3" * 60 * MIB + b"}", "numbers"),
        (b"[" * 60 * MIB, "values|nested"),
    ],
)
def test_what_would_be_slow_to_parse_is_refused_soon(raw: bytes, message: str) -> None:
    started = time.thread_time()
    with pytest.raises(JsonTooComplex, match=message):
        parse_json(raw)
    assert time.thread_time() - started < 10  # parsing them took minutes, and gigabytes


def test_an_image_with_a_text_full_of_punctuation_is_accepted() -> None:
    body = {"prompt": '[{,:"\\' * 100_000, "image": ["data:image/png;base64," + "A" * 60 * MIB]}
    assert parse_json(json.dumps(body).encode()) == body
