"""What is read of a request before any route's own fields."""

from types import SimpleNamespace

import pytest
from starlette.requests import Request

from server.errors import Unauthorized
from server.extras import DIALECTS
from server.http.deps import bearer, ignored_header, read_retry_info
from server.schemas.json_shape import JsonTooComplex
from server.schemas.validation import MalformedBody, parse_json

APP = SimpleNamespace(state=SimpleNamespace(dialects=DIALECTS))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", f"-{'9' * 400}.0"])
def test_a_number_that_no_other_server_could_be_sent_is_no_json(number: str) -> None:
    with pytest.raises(MalformedBody, match="is no finite number"):
        parse_json(f'{{"messages": [], "top_k": {number}}}'.encode())
    assert parse_json(b'{"a": -1.5e3, "b": 2}') == {"a": -1500.0, "b": 2}


@pytest.mark.parametrize(
    ("sent", "count"), [("0", 0), ("2", 2), ("two", None), ("-1", None), ("9" * 5000, None), (None, None)]
)
def test_a_retry_is_counted_where_its_number_is_one(sent: str | None, count: int | None) -> None:
    headers = [] if sent is None else [(b"x-stainless-retry-count", sent.encode())]
    assert read_retry_info(Request({"type": "http", "headers": headers}), "print").retry_count == count


def test_ignored_fields_are_named_as_far_as_a_header_can_hold_them() -> None:
    assert ignored_header(["top_k", "a\r\nb", "größe", "loras[x]"]) == {"x-darkroom-ignored": "top_k, loras[x]"}
    assert ignored_header(["a\nb"]) == {}
    assert ignored_header([f"field_{number:04}" for number in range(99)])["x-darkroom-ignored"].endswith("0040, ...")
    assert ignored_header(["x" * 600]) == {"x-darkroom-ignored": "..."}
    assert ignored_header(["x" * 400, "y" * 400]) == {"x-darkroom-ignored": f"{'x' * 400}, ..."}


def test_what_is_nested_deeper_than_it_can_be_written_again_is_refused() -> None:
    for depth, refused in ((98, False), (200, True)):
        raw = b'{"a":' + depth * b"[" + depth * b"]" + b"}"
        if refused:
            with pytest.raises(JsonTooComplex, match="nested"):
                parse_json(raw)
        else:
            assert parse_json(raw)


def test_half_a_character_is_refused() -> None:
    assert parse_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    for raw in (b'{"a": "\\ud83d"}', b'{"a": "\xed\xa0\x80"}'):
        with pytest.raises(MalformedBody):
            parse_json(raw)


@pytest.mark.parametrize(
    ("headers", "path", "query", "secret"),
    [
        ({"Authorization": "bearer  k "}, "/v1/models", "", "k"),
        ({"x-api-key": "k"}, "/v1/messages", "", "k"),
        ({"api-key": "k"}, "/v1/images/generations", "", "k"),
        ({"x-goog-api-key": "k"}, "/v1beta/models", "", "k"),
        ({}, "/v1beta/models", "key=k&alt=sse", "k"),
        ({"Authorization": "Basic abc", "x-api-key": "k"}, "/v1/messages", "", "k"),
        ({"Authorization": "Bearer k", "x-api-key": "other"}, "/v1/messages", "", "k"),
        ({"Authorization": "Bearer "}, "/v1/messages", "", None),
        ({}, "/v1/models", "key=k", None),  # a URL is written into logs: only where clients know no other place
    ],
)
def test_the_key_is_found_where_each_protocol_has_it(
    headers: dict[str, str], path: str, query: str, secret: str | None
) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": raw, "path": path, "query_string": query.encode(), "server": ("x", 80)}
    request = Request(scope | {"app": APP})
    if secret is not None:
        assert bearer(request) == secret
        return
    with pytest.raises(Unauthorized, match="didn't provide"):
        bearer(request)
