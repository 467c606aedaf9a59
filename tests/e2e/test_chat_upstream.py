"""Chat models of an upstream server, which is a second Darkroom here."""

import concurrent.futures
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.chat_servers import ENDLESS, chat_server
from tests.support.harness import Server, charges, suspended, until

GREEDY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 16}
LONG: dict[str, Any] = {**GREEDY, **ENDLESS, "model": "endless", "max_tokens": 30_000, "n": 8}
PATH = "/v1/chat/completions"
UPSTREAM = """
[[models]]
name = "far"
upstream = "{base}/v1"
upstream_model = "small"
api_key_env = "FAR_KEY"

[[models]]
name = "endless"
upstream = "{base}/v1"
upstream_model = "endless"
api_key_env = "FAR_KEY"

[[models]]
name = "gone"
upstream = "http://127.0.0.1:9/v1"
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, chat: Server, chat_weights: Path) -> Iterator[Server]:
    """A server without a chat worker, whose models are upstream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", chat.key)
        home = tmp_path_factory.mktemp("gateway")
        server = chat_server(home, chat_weights, UPSTREAM.format(base=chat.base)).start(wait=False)
    until(lambda: alive(server))
    yield server
    server.kill()


def alive(server: Server) -> bool:
    try:
        return httpx.get(f"{server.base}/healthz", timeout=60, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_upstreams_answer_is_returned(gateway: Server, chat: Server) -> None:
    far = gateway.openai().chat.completions.create(model="far", **GREEDY)
    near = chat.openai().chat.completions.create(model="small", **GREEDY)
    assert far.choices == near.choices
    assert far.usage == near.usage


def test_a_stream_is_relayed_with_usage_only_on_request(gateway: Server, chat: Server) -> None:
    near = chat.openai().chat.completions.create(model="small", **GREEDY)
    plain = list(gateway.openai().chat.completions.create(model="far", stream=True, **GREEDY))
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain) == near.choices[0].message.content
    options = {"include_usage": True}
    *_, last = gateway.openai().chat.completions.create(model="far", stream=True, stream_options=options, **GREEDY)
    assert (last.choices, last.usage) == ([], near.usage)
    with gateway.http() as client:
        body = client.post(PATH, json={**GREEDY, "model": "far", "stream": True}).text
    assert body.endswith("data: [DONE]\n\n")
    assert '"usage"' not in body


def test_a_retry_with_an_idempotency_key_gets_the_upstreams_answer_again(gateway: Server) -> None:
    with gateway.http() as client:
        for fields in ({}, {"stream": True}):
            headers = {"Idempotency-Key": f"far-{len(fields)}"}
            body = {**GREEDY, "model": "far", **fields}
            first, again = (client.post(PATH, json=body, headers=headers) for _ in range(2))
            assert (first.status_code, again.text) == (200, first.text)
            assert [answer.headers.get("idempotency-replayed") for answer in (first, again)] == [None, "true"]
            refused = client.post(
                PATH, json={**body, "temperature": 9}, headers={"Idempotency-Key": f"bad-{len(fields)}"}
            )
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")


def test_upstream_errors_are_relayed(gateway: Server) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            gateway.openai().chat.completions.create(model="far", stream=stream, **{**GREEDY, "temperature": 9})
        assert (raised.value.param, raised.value.code) == ("temperature", "integer_above_max_value")
    long: Any = [{"role": "user", "content": "x" * 600}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is"):
        gateway.openai().chat.completions.create(model="far", messages=long)
    with gateway.http() as client:
        answer = client.post(PATH, json={**GREEDY, "model": "gone"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_disconnect_cancels_the_chat_upstream(gateway: Server, chat: Server) -> None:
    with gateway.http() as client, client.stream("POST", PATH, json={**LONG, "stream": True}) as answer:
        assert next(line for line in answer.iter_lines() if line.startswith("data: {"))
    until(lambda: chat.readiness()["chat"]["jobs"] == 0)


def test_chats_count_among_a_keys_calls_at_once(gateway: Server, chat: Server) -> None:
    secret = gateway.new_key("busy", max_running=1)
    with gateway.http(secret) as client:
        with (
            client.stream("POST", PATH, json={**LONG, "stream": True}) as answer,
            suspended(chat.readiness()["chat"]["worker_pid"]),
        ):
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert client.post(PATH, json=LONG).status_code == 429
        until(lambda: client.post(PATH, json={**GREEDY, "model": "far"}).status_code == 200)
    until(lambda: chat.readiness()["chat"]["jobs"] == 0)


def test_tokens_are_counted_here_too(gateway: Server) -> None:
    secret = gateway.new_key("counted")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        client = gateway.openai(secret)
        unstreamed = pool.submit(client.chat.completions.create, model="far", **GREEDY)
        chunks = list(client.chat.completions.create(model="far", stream=True, **GREEDY))
        usage = unstreamed.result().usage
    assert chunks
    assert usage is not None
    ledger = gateway.darkroom("ledger").stdout
    counted = f"│ 2     │ {2 * usage.prompt_tokens}"
    assert any(counted in line and "far" in line for line in ledger.splitlines()), ledger


TEXT: Any = {"input": "hello", "temperature": 0, "max_output_tokens": 16}
CLOSED = {"additionalProperties": False}
PICK: Any = {
    "type": "json_schema",
    "name": "pick",
    "schema": {"type": "object", "properties": {"city": {"enum": ["Wien", "Graz"]}}, **CLOSED, "required": ["city"]},
}
LIST: Any = {  # a text of some 300 tokens, whatever the model prefers
    "type": "json_schema",
    "name": "list",
    "schema": {
        "type": "object",
        "properties": {"cities": {"type": "array", "items": {"enum": ["Graz"]}, "minItems": 40, "maxItems": 40}},
        "required": ["cities"],
        **CLOSED,
    },
}
LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}, **CLOSED}}


def test_responses_have_the_upstreams_text(gateway: Server, chat: Server) -> None:
    far, near = gateway.openai().responses, chat.openai().responses
    first, expected = far.create(model="far", **TEXT), near.create(model="small", **TEXT)
    assert first.output_text == expected.output_text != ""
    assert (first.status, first.usage) == (expected.status, expected.usage)
    events = list(far.create(model="far", stream=True, **TEXT))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == first.output_text
    again = {**TEXT, "input": "and you?"}
    second = far.create(model="far", previous_response_id=first.id, **again)
    assert second.output_text == near.create(model="small", previous_response_id=expected.id, **again).output_text
    logprobs: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    relayed, expected = far.create(model="far", **TEXT, **logprobs), near.create(model="small", **TEXT, **logprobs)
    assert relayed.output[0].content == expected.output[0].content  # type: ignore[union-attr]


def test_responses_have_the_upstreams_tools_and_formats(gateway: Server) -> None:
    client = gateway.openai().responses
    once: Any = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    (call,) = client.create(model="far", input="look", tools=[LOOK], **once).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {})  # type: ignore[union-attr]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a star"}  # type: ignore[union-attr]
    items = [{"role": "user", "content": "look"}, call.model_dump(exclude_none=True), result]
    assert client.create(model="far", input=items, max_output_tokens=16).status in {"completed", "incomplete"}  # type: ignore[arg-type]
    chosen = client.create(model="far", input="which?", text={"format": PICK}, temperature=0)
    assert json.loads(chosen.output_text)["city"] in {"Wien", "Graz"}


def test_what_an_upstream_can_only_be_told_is_named(gateway: Server) -> None:
    numbers = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
    tools = [{"type": "custom", "name": "dial", "format": numbers}]
    choice = {"type": "custom", "name": "dial"}
    body = {"model": "far", "input": "dial", "tools": tools, "tool_choice": choice, "truncation": "auto"}
    with gateway.http() as client:
        answer = client.post("/v1/responses", json={**body, "max_output_tokens": 64})
    assert answer.headers["x-darkroom-ignored"] == "tools[0].format, truncation"
    (call,) = answer.json()["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "dial")


def test_an_upstream_refusal_names_the_responses_field(gateway: Server) -> None:
    for body, status, param in (
        ({**TEXT, "input": "x" * 600}, 400, "input"),
        ({**TEXT, "model": "gone"}, 503, None),
    ):
        for stream in (False, True):
            with gateway.http() as client:
                answer = client.post("/v1/responses", json={"model": "far", **body, "stream": stream})
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    with gateway.http() as client:
        assert client.post("/v1/responses/input_tokens", json={"model": "far", "input": "hello"}).status_code == 400


def test_a_disconnect_cancels_the_response_upstream(gateway: Server, chat: Server) -> None:
    body = {"model": "far", "input": "go on", "stream": True, "text": {"format": LIST}}
    with gateway.http() as client, client.stream("POST", "/v1/responses", json=body) as answer:
        assert next(line for line in answer.iter_lines() if "output_text.delta" in line)
    until(lambda: chat.readiness()["chat"]["jobs"] == 0)


@pytest.mark.nightly
def test_an_upstream_model_generates_images_here(tmp_path: Path, chat: Server, tiny: tuple[Path, Path]) -> None:
    weights, catalog = tiny
    shutil.copytree(catalog, tmp_path / "configs")
    (tmp_path / "configs" / "chat.toml").write_text(UPSTREAM.format(base=chat.base))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", chat.key)
        server = Server(tmp_path / "home", weights, tmp_path / "configs").start()
    tool: Any = {"type": "image_generation", "size": "256x256"}
    try:
        client = server.openai().responses
        force: Any = {"tools": [tool], "tool_choice": {"type": "image_generation"}}
        first = client.create(model="far", input="a star", **force, temperature=0, max_output_tokens=32)
        (call,) = [item for item in first.output if item.type == "image_generation_call"]
        assert call.status == "completed"
        assert call.result
        assert charges(server) == 1
        assert client.create(model="far", previous_response_id=first.id, **{**TEXT, "input": "more"}).id
    finally:
        server.kill()


def test_upstream_models_are_listed_without_a_chat_worker(gateway: Server) -> None:
    assert "far" in {model.id for model in gateway.openai().models.list()}
    assert gateway.readiness()["chat"] is None
    assert "upstream" in gateway.darkroom("models").stdout


def test_messages_have_the_upstreams_text_and_length(gateway: Server, chat: Server) -> None:
    sent: Any = {**GREEDY, "max_tokens": 48, "tools": [{"name": "look", "input_schema": LOOK["parameters"]}]}
    with gateway.http() as far, chat.http() as near:
        for fields in ({}, {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}):
            answers = [
                client.post("/v1/messages", json={**sent, **fields, "model": model}).json()
                for client, model in ((far, "far"), (near, "small"))
            ]
            assert all("content" in answer for answer in answers), answers
            texts = [[(part.get("text"), part.get("input")) for part in answer["content"]] for answer in answers]
            assert texts[0] == texts[1] != []
            used = [answer["usage"] for answer in answers]  # the second finds the beginning of the first computed
            totals = [(each["input_tokens"] + each["cache_read_input_tokens"], each["output_tokens"]) for each in used]
            assert totals[0] == totals[1]
            assert answers[0]["stop_reason"] == answers[1]["stop_reason"]
        counts = [
            client.post("/v1/messages/count_tokens", json={"messages": sent["messages"], "model": model}).json()
            for client, model in ((far, "far"), (near, "small"))
        ]
        assert counts[0] == counts[1]
        assert counts[0]["input_tokens"] > 0
        refused = far.post(
            "/v1/messages", json={**GREEDY, "model": "far", "messages": [{"role": "user", "content": "x" * 600}]}
        )
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert far.post("/v1/messages", json={**GREEDY, "model": "gone"}).json()["error"]["type"] == "overloaded_error"
