"""A name that stands for another server's model; here the other server is a second Darkroom."""

import concurrent.futures
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.test_faults import until
from tests.support.chat_servers import chat_server
from tests.support.harness import Server, charges

GREEDY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 16}
UPSTREAM = """
[[models]]
name = "far"
upstream = "{base}/v1"
upstream_model = "small"
api_key_env = "FAR_KEY"

[[models]]
name = "gone"
upstream = "http://127.0.0.1:9/v1"
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, chat: Server, chat_weights: Path) -> Iterator[Server]:
    """It has no chat worker of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", chat.key)
        home = tmp_path_factory.mktemp("gateway")
        server = chat_server(home, chat_weights, UPSTREAM.format(base=chat.base)).start(wait=False)
    until(lambda: alive(server), limit_s=300)
    yield server
    server.kill()


def alive(server: Server) -> bool:
    try:
        return httpx.get(f"{server.base}/healthz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_answers_are_the_upstreams(gateway: Server, chat: Server) -> None:
    far = gateway.openai().chat.completions.create(model="far", **GREEDY)
    near = chat.openai().chat.completions.create(model="small", **GREEDY)
    assert far.choices == near.choices
    assert far.usage == near.usage


def test_streams_are_passed_on_with_the_usage_only_for_who_asked(gateway: Server, chat: Server) -> None:
    near = chat.openai().chat.completions.create(model="small", **GREEDY)
    plain = list(gateway.openai().chat.completions.create(model="far", stream=True, **GREEDY))
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain) == near.choices[0].message.content
    options = {"include_usage": True}
    *_, last = gateway.openai().chat.completions.create(model="far", stream=True, stream_options=options, **GREEDY)
    assert (last.choices, last.usage) == ([], near.usage)
    with gateway.http() as client:
        body = client.post("/v1/chat/completions", json={**GREEDY, "model": "far", "stream": True}).text
    assert body.endswith("data: [DONE]\n\n")
    assert '"usage"' not in body


def test_errors_are_passed_on(gateway: Server) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            gateway.openai().chat.completions.create(model="far", stream=stream, **{**GREEDY, "temperature": 9})
        assert (raised.value.param, raised.value.code) == ("temperature", "integer_above_max_value")
    long: Any = [{"role": "user", "content": "x" * 600}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is"):
        gateway.openai().chat.completions.create(model="far", messages=long)
    with gateway.http() as client:
        answer = client.post("/v1/chat/completions", json={**GREEDY, "model": "gone"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_who_leaves_the_gateway_leaves_the_upstream(gateway: Server, chat: Server) -> None:
    body = {**GREEDY, "model": "far", "stream": True, "max_tokens": 400, "n": 8, "temperature": 1, "seed": 1}
    with gateway.http() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert next(answer.iter_lines()).startswith("data: {")
    until(lambda: chat.readiness()["chat"]["jobs"] == 0, limit_s=120)


def test_chats_count_among_a_keys_calls_at_once(gateway: Server, chat: Server) -> None:
    made = gateway.darkroom("keys", "create", "busy")
    key_id, secret = made.stderr.split()[0], made.stdout.strip()
    gateway.darkroom("keys", "set", key_id, "--max-running", "1")
    body = {**GREEDY, "model": "far", "max_tokens": 400, "n": 8, "temperature": 1, "seed": 1}
    with gateway.http(secret) as client:
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert client.post("/v1/chat/completions", json=body).status_code == 429
        until(lambda: client.post("/v1/chat/completions", json={**GREEDY, "model": "far"}).status_code == 200)
    until(lambda: chat.readiness()["chat"]["jobs"] == 0, limit_s=120)


def test_tokens_are_counted_here_too(gateway: Server) -> None:
    secret = gateway.darkroom("keys", "create", "counted").stdout.strip()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        client = gateway.openai(secret)
        whole = pool.submit(client.chat.completions.create, model="far", **GREEDY)
        chunks = list(client.chat.completions.create(model="far", stream=True, **GREEDY))
        usage = whole.result().usage
    assert chunks
    assert usage is not None
    shown = gateway.darkroom("ledger").stdout
    counted = f"│ 2     │ {2 * usage.prompt_tokens}"
    assert any(counted in line and "far" in line for line in shown.splitlines()), shown


SAY: Any = {"input": "hello", "temperature": 0, "max_output_tokens": 16}
CLOSED = {"additionalProperties": False}
PICK: Any = {
    "type": "json_schema",
    "name": "pick",
    "schema": {"type": "object", "properties": {"city": {"enum": ["Wien", "Graz"]}}, **CLOSED, "required": ["city"]},
}
LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}, **CLOSED}}


def test_responses_are_what_the_upstream_says(gateway: Server, chat: Server) -> None:
    far, near = gateway.openai().responses, chat.openai().responses
    first, expected = far.create(model="far", **SAY), near.create(model="small", **SAY)
    assert first.output_text == expected.output_text != ""
    assert (first.status, first.usage) == (expected.status, expected.usage)
    events = list(far.create(model="far", stream=True, **SAY))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == first.output_text
    again = {**SAY, "input": "and you?"}
    second = far.create(model="far", previous_response_id=first.id, **again)
    assert second.output_text == near.create(model="small", previous_response_id=expected.id, **again).output_text
    logprobs: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    told, expected = far.create(model="far", **SAY, **logprobs), near.create(model="small", **SAY, **logprobs)
    assert told.output[0].content == expected.output[0].content  # type: ignore[union-attr]


def test_responses_have_the_upstreams_tools_and_formats(gateway: Server) -> None:
    client = gateway.openai().responses
    once: Any = {"tool_choice": "required", "parallel_tool_calls": False}  # at random, it might call twice
    (call,) = client.create(model="far", input="look", tools=[LOOK], **once).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {})  # type: ignore[union-attr]
    said: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a star"}  # type: ignore[union-attr]
    asked = [{"role": "user", "content": "look"}, call.model_dump(exclude_none=True), said]
    assert client.create(model="far", input=asked, max_output_tokens=16).status in {"completed", "incomplete"}  # type: ignore[arg-type]
    picked = client.create(model="far", input="which?", text={"format": PICK})
    assert json.loads(picked.output_text)["city"] in {"Wien", "Graz"}


def test_what_an_upstream_refuses_is_told_of_the_responses_fields(gateway: Server) -> None:
    for body, status, param in (
        ({**SAY, "input": "x" * 600}, 400, "input"),
        ({**SAY, "truncation": "auto"}, 400, "truncation"),
        ({**SAY, "model": "gone"}, 503, None),
    ):
        for stream in (False, True):
            with gateway.http() as client:
                answer = client.post("/v1/responses", json={"model": "far", **body, "stream": stream})
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    with gateway.http() as client:
        assert client.post("/v1/responses/input_tokens", json={"model": "far", "input": "hello"}).status_code == 400


def test_who_leaves_a_response_leaves_the_upstream(gateway: Server, chat: Server) -> None:
    body = {"model": "far", "input": "go on", "stream": True}
    with gateway.http() as client, client.stream("POST", "/v1/responses", json=body) as answer:
        assert next(line for line in answer.iter_lines() if "output_text.delta" in line)
    until(lambda: chat.readiness()["chat"]["jobs"] == 0, limit_s=120)


def test_an_upstreams_model_draws_here(tmp_path: Path, chat: Server, tiny: tuple[Path, Path]) -> None:
    weights, catalog = tiny
    shutil.copytree(catalog, tmp_path / "configs")
    (tmp_path / "configs" / "chat.toml").write_text(UPSTREAM.format(base=chat.base))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", chat.key)
        server = Server(tmp_path / "home", weights, tmp_path / "configs").start()
    tool: Any = {"type": "image_generation", "size": "256x256"}
    try:
        client = server.openai().responses
        first = client.create(
            model="far", input="a star", tools=[tool], tool_choice={"type": "image_generation"}, max_output_tokens=32
        )
        (call,) = [item for item in first.output if item.type == "image_generation_call"]
        assert call.status == "completed"
        assert call.result
        assert charges(server) == 1
        assert client.create(model="far", previous_response_id=first.id, input="more", max_output_tokens=16).id
    finally:
        server.kill()


def test_the_list_has_it_and_no_chat_worker_runs(gateway: Server) -> None:
    assert "far" in {model.id for model in gateway.openai().models.list()}
    assert gateway.readiness()["chat"] is None
    assert "upstream" in gateway.darkroom("models").stdout
