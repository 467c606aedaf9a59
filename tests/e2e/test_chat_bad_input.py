"""Invalid chats are refused by field before anything is sent; tests/unit/chat/test_parse.py has every field."""

from typing import Any

import openai
import pytest

from tests.support.chat_servers import CONTEXT
from tests.support.harness import Server

HELLO = [{"role": "user", "content": "hello"}]
LONG = [{"role": "user", "content": "x" * 600}]
TOOL = {"type": "function", "function": {"name": "weather"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}

REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": "gone"}, 404, "model_not_found", "model"),
    ({"model": 5}, 400, "invalid_type", "model"),
    ({"messages": []}, 400, "array_below_min_length", "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "invalid_type", "messages[0].content"),
    ({"temperature": 3}, 400, "integer_above_max_value", "temperature"),
    ({"functions": [{"name": "x"}]}, 400, "unsupported_parameter", "functions"),
    ({"messages": LONG}, 400, "context_length_exceeded", "messages"),
    ({"logit_bias": {"99999": 1}}, 400, "invalid_value", "logit_bias"),
    ({"model": "plain", "tools": [TOOL]}, 400, "unsupported_parameter", "tools"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "unsupported_parameter",
     "messages[0].content[0].image_url"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "status", "code", "param"), REFUSED)
def test_a_refusal_names_the_field(
    chat: Server, fields: dict[str, Any], status: int, code: str, param: str | None, stream: bool
) -> None:
    with chat.http() as client:
        body = {"model": "small", "messages": HELLO, "max_tokens": 2, "stream": stream, **fields}
        answer = client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error["message"]
    assert error["type"] == "invalid_request_error"


def test_an_overflow_names_both_lengths(chat: Server) -> None:
    both = rf"maximum context length is {CONTEXT} tokens.* resulted in 6\d\d"
    with pytest.raises(openai.BadRequestError, match=both):
        chat.openai().chat.completions.create(model="small", messages=LONG)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff"])
def test_a_body_that_is_no_json_object_is_400(chat: Server, body: bytes) -> None:
    with chat.http() as client:
        answer = client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_fields_without_effect_are_named_in_a_header(chat: Server) -> None:
    with chat.http() as client:
        body = {"model": "small", "messages": HELLO, "max_tokens": 1, "store": True, "novel_field": 1}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-darkroom-ignored"] == "store, novel_field"
