"""Sixteen upstreams that speak OpenAI's protocol a little otherwise, by route: status, headers and body."""

import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.data_folders import REPOSITORY
from tests.support.in_process import InProcess, in_process
from tests.support.odd_upstream import TYPES, WRITTEN, odd_upstream

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "parameters": SCHEMA}
CHAT_TOML = '[[models]]\nname = "odd"\nupstream = "{}"\n'
PATHS = {
    "chat": "/v1/chat/completions",
    "json": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/odd:generateContent",
}
Bodies = list[dict[str, Any]]


@pytest.fixture
async def odd(tmp_path: Path) -> AsyncIterator[tuple[InProcess, Bodies]]:
    with odd_upstream() as (base, bodies):
        configs = Path(shutil.copytree(REPOSITORY / "model_configs", tmp_path / "configs"))
        (configs / "chat.toml").write_text(CHAT_TOML.format(base))
        async with in_process(tmp_path / "home", configs=configs) as app:
            yield app, bodies


def body(route: str, kind: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": kind}]
    tools = [{"type": "function", "function": FUNCTION}]
    return {
        "chat": {"model": "odd", "messages": messages, "tools": tools, "stream": True},
        "json": {"model": "odd", "messages": messages},
        "responses": {"model": "odd", "input": kind, "tools": [{"type": "function", **FUNCTION}]},
        "messages": {
            "model": "odd",
            "max_tokens": 50,
            "messages": messages,
            "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        },
        "gemini": {
            "contents": [{"parts": [{"text": kind}]}],
            "tools": [{"functionDeclarations": [{"name": "get_weather", "parametersJsonSchema": SCHEMA}]}],
        },
    }[route]


ERRORS = (
    ("html429", 429, "7", "Too Many Requests", "rate_limit_exceeded"),
    ("html502", 502, None, "Bad Gateway", None),
    ("html413", 413, None, "413 Request Entity Too Large", "request_too_large"),
    ("text404", 404, None, "404 page not found", None),
    ("detail422", 422, None, "Field required", None),
    ("fast503", 503, "5", "loading", "server_overloaded"),
)


async def test_an_error_keeps_its_status_and_says_what_the_upstream_said(odd: tuple[InProcess, Bodies]) -> None:
    app, _ = odd
    for route, (kind, status, retry_after, says, code) in itertools.product(PATHS, ERRORS):
        answer = await app.client.post(PATHS[route], json=body(route, kind))
        error = answer.json()["error"]
        said = (answer.status_code, answer.headers.get("retry-after"))
        assert said == (_of_protocol(route, status), retry_after), (route, kind, answer.text)
        assert says in error["message"], (route, kind)
        if route != "gemini":  # whose code is the status, by its protocol
            assert error.get("code") == code, (route, kind)


def _of_protocol(route: str, status: int) -> int:
    """Return the status that the protocol has for an overloaded server."""
    return 529 if (route, status) == ("messages", 503) else status


CONTEXT_WORDS = {  # by which clients of each protocol know that a conversation is too long, and read both numbers
    "chat": ("context_length_exceeded", "maximum context length is 20000 tokens"),
    "json": ("context_length_exceeded", "maximum context length is 20000 tokens"),
    "responses": ("context_length_exceeded", "maximum context length is 20000 tokens"),
    "messages": ("invalid_request_error", "prompt is too long: 21000 tokens > 20000 maximum"),
    "gemini": ("INVALID_ARGUMENT", "input token count (21000) exceeds the maximum number of tokens allowed (20000)"),
}


@pytest.mark.parametrize("kind", ["context400", "contextfirst", "contextmid"])
async def test_a_conversation_that_is_too_long_is_told_in_the_clients_words(
    odd: tuple[InProcess, Bodies], kind: str
) -> None:
    app, _ = odd
    for route, words in CONTEXT_WORDS.items():
        if route == "json" and kind != "context400":
            continue  # which has no stream
        answer = await app.client.post(PATHS[route], json=body(route, f"plain {kind}"))
        assert answer.status_code == (200 if (route, kind) == ("chat", "contextmid") else 400), (route, answer.text)
        assert all(word in answer.text for word in words), (route, answer.text)
    answer = await app.client.post("/v1/responses", json={**body("responses", f"plain {kind}"), "stream": True})
    assert '"code": "context_length_exceeded"' in answer.text.replace('":"', '": "')


async def test_a_limit_that_the_context_has_no_room_for_is_lowered(odd: tuple[InProcess, Bodies]) -> None:
    app, bodies = odd
    for route in ("chat", "json", "responses", "messages"):
        field = "max_output_tokens" if route == "responses" else "max_tokens"
        asked = {**body(route, "plain room300"), field: 32_000}
        answer = await app.client.post(PATHS[route], json=asked)
        assert answer.status_code == 200, (route, answer.text)
        assert (bodies[-2]["max_tokens"], bodies[-1]["max_tokens"]) == (32_000, 300), route


async def test_the_tokens_of_a_conversation_that_is_too_long_are_counted(odd: tuple[InProcess, Bodies]) -> None:
    app, _ = odd
    answer = await app.client.post("/v1/messages/count_tokens", json=body("messages", "plain context400"))
    assert answer.json() == {"input_tokens": 21_000}


def folded(route: str, text: str) -> tuple[list[dict[str, Any]], str | None, str]:
    """Return the arguments of all calls, why the answer ended, and its text."""
    if route == "chat":
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
        calls: dict[int, str] = {}
        for piece in (piece for choice in choices for piece in choice["delta"].get("tool_calls") or ()):
            calls[piece["index"]] = calls.get(piece["index"], "") + piece["function"]["arguments"]
        words = "".join(choice["delta"].get("content") or "" for choice in choices)
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert text.rstrip().endswith("data: [DONE]")
        return [json.loads(call) for call in calls.values()], reasons[-1], words
    answer = json.loads(text)
    if route == "responses":
        made = [json.loads(item["arguments"]) for item in answer["output"] if item["type"] == "function_call"]
        parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        return made, answer["status"], "".join(part["text"] for part in parts)
    if route == "messages":
        made = [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
        return made, answer["stop_reason"], "".join(block.get("text", "") for block in answer["content"])
    (candidate,) = answer["candidates"]
    made = [part["functionCall"]["args"] for part in candidate["content"]["parts"] if "functionCall" in part]
    said = [part.get("text", "") for part in candidate["content"]["parts"] if not part.get("thought")]
    return made, candidate["finishReason"], "".join(said)


WHOLE = {"chat": "stop", "responses": "completed", "messages": "end_turn", "gemini": "STOP"}
CALLED = {**WHOLE, "chat": "tool_calls", "messages": "tool_use"}


async def test_an_answer_is_whole_with_its_finish_reason(odd: tuple[InProcess, Bodies]) -> None:
    app, _ = odd
    for route, kind in itertools.product(WHOLE, ("nodone", "nochoices", "nousage finwith nullcontent")):
        answer = await app.client.post(PATHS[route], json=body(route, f"plain {kind}"))
        assert answer.status_code == 200, (route, kind, answer.text)
        assert folded(route, answer.text) == ([], WHOLE[route], "Hello"), (route, kind)


WRITTEN_OTHERWISE = (
    *(name for name in WRITTEN if name != "separator"), *TYPES, "parts", "refusal", "inmessage",
)  # fmt: skip


async def test_an_answer_is_read_however_it_is_written(odd: tuple[InProcess, Bodies]) -> None:
    app, _ = odd
    for route, kind in itertools.product(WHOLE, WRITTEN_OTHERWISE):
        if (route, kind) == ("chat", "refusal"):
            continue  # it is passed on as it is
        answer = await app.client.post(PATHS[route], json=body(route, f"plain {kind}"))
        assert answer.status_code == 200, (route, kind, answer.text)
        assert folded(route, answer.text) == ([], WHOLE[route], "Hello"), (route, kind)
    for route in WHOLE:
        answer = await app.client.post(PATHS[route], json=body(route, "plain separator"))
        assert folded(route, answer.text)[2] == "Hel\u2028\u0085lo", route
    thought = await app.client.post(PATHS["responses"], json=body("responses", "plain parts"))
    assert [item["type"] for item in thought.json()["output"]] == ["reasoning", "message"]


async def test_an_error_in_a_successful_answer_is_an_error(odd: tuple[InProcess, Bodies]) -> None:
    app, _ = odd
    kinds = (("said429", 429, "slow down"), ("said500", 500, "out of memory"))
    in_streams = (("choice502", 502, "no provider"), ("event503", 503, "lost"), ("onlydone", 500, "ended its stream"))
    asked = [*itertools.product(PATHS, kinds), *itertools.product(("responses", "messages", "gemini"), in_streams)]
    for route, (kind, status, says) in asked:
        answer = await app.client.post(PATHS[route], json=body(route, f"plain {kind}"))
        assert answer.status_code == _of_protocol(route, status), (route, kind, answer.text)
        assert says in answer.json()["error"]["message"], (route, kind)


async def test_two_calls_stay_two_and_end_the_answer(odd: tuple[InProcess, Bodies]) -> None:
    app, _ = odd
    kinds = ("", "noindex", "index0", "noid", "nulltype", "argsobj", "finstop")
    for route, kind in itertools.product(WHOLE, kinds):
        answer = await app.client.post(PATHS[route], json=body(route, f"tool {kind}"))
        assert answer.status_code == 200, (route, kind, answer.text)
        called = folded(route, answer.text)
        assert called == ([{"city": "Rome"}, {"city": "Oslo"}], CALLED[route], ""), (route, kind)


async def test_no_default_is_sent_that_the_caller_did_not_send(odd: tuple[InProcess, Bodies]) -> None:
    app, bodies = odd
    for route in PATHS:
        await app.client.post(PATHS[route], json=body(route, "plain"))
        asked = {"model", "messages", "stream", "stream_options", "tools", "max_tokens"}
        assert bodies[-1].keys() <= asked, (route, bodies[-1])
        chosen = {"temperature": 1.0, "top_p": 1.0}
        config = {"generationConfig": {"temperature": 1.0, "topP": 1.0}} if route == "gemini" else chosen
        await app.client.post(PATHS[route], json={**body(route, "plain"), **config})
        assert {name: bodies[-1][name] for name in chosen} == chosen, route
