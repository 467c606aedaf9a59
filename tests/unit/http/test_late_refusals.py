"""Streams begin before it is known whether they are refused: the refusal is then their last event."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message

from server.accounts.keys import Key
from server.accounts.responses import StoredResponse
from server.app import create_app
from server.backends.upstream import UpstreamResponse
from server.data_folders import REPOSITORY
from server.errors import BadRequest, RateLimited
from server.flows.chat.events import RawItem
from server.http.deps import caller
from server.settings import Settings
from server.state.active_responses import ActiveResponse
from tests.unit.http.test_dialect_routes import CALLED, Events

KEY = Key("key_1", "n", "t", frozenset({"chat"}), None, datetime.now(UTC), None, None, None, None, keepalive=False)
USER = {"role": "user", "content": "hello"}
CHAT = {"model": "starter-chat", "messages": [USER], "stream": True}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
STREAMS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", {**CHAT, "max_tokens": 8}),
    ("/v1beta/models/starter-chat:streamGenerateContent?alt=sse", GEMINI),
]
REFUSED = {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}


@pytest.fixture
async def app(tmp_path: Any) -> FastAPI:
    settings = Settings(
        home=tmp_path, weights=tmp_path, model_configs=REPOSITORY / "model_configs", database=None, keepalive_s=0.01
    )
    made = create_app(settings)
    made.dependency_overrides[caller] = lambda: KEY
    return made


@pytest.fixture
def events(app: FastAPI) -> Events:
    fake: Any = Events()
    chats = dataclasses.replace(app.state.services.chats, any_model=fake, image=fake)
    app.state.services = dataclasses.replace(app.state.services, chats=chats)
    return fake


async def begun(app: FastAPI, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        answer = await client.post(path, json=body, headers=headers)
    return answer.status_code, answer.text


def objects(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("path", "body"), STREAMS)
@pytest.mark.parametrize("refusal", [RateLimited("slow down", 3), UpstreamResponse(429, {"error": REFUSED}, {})])
async def test_a_late_refusal_is_the_streams_error(
    app: FastAPI, events: Events, path: str, body: dict[str, Any], refusal: Any
) -> None:
    events.items = [0.3, refusal]
    status, text = await begun(app, path, body)
    assert status == 200
    (last,) = objects(text)
    error = last["error"]
    assert "slow down" in error["message"]
    events.items = [refusal]
    status, text = await begun(app, path, body)
    assert (status, "slow down" in text) == (429, True), "at once, it has its status"


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_what_comes_late_is_whole(app: FastAPI, events: Events, path: str, body: dict[str, Any]) -> None:
    prompt = (await begun(app, path, body))[1]
    events.items = [0.3, *CALLED]
    late = (await begun(app, path, body))[1]
    assert [sorted(each) for each in objects(late)] == [sorted(each) for each in objects(prompt)]


async def test_an_upstreams_whole_answer_comes_after_spaces(app: FastAPI, events: Events) -> None:
    events.items = [0.3, UpstreamResponse(200, {"choices": [], "extra": 1}, {})]
    status, text = await begun(app, *STREAMS[0][:1], {**CHAT, "stream": False}, {"X-Keepalive": "1"})
    assert status == 200
    assert text.startswith(" ")
    assert json.loads(text) == {"choices": [], "extra": 1}


async def test_a_client_that_leaves_before_the_first_event_ends_the_chat(app: FastAPI, events: Events) -> None:
    closed = asyncio.Event()

    async def play(*_: Any) -> AsyncIterator[Any]:
        try:
            await asyncio.sleep(3600)
            yield RawItem({})
        finally:
            closed.set()

    events._play = play  # type: ignore[method-assign, assignment]
    sent: list[Message] = []
    left = asyncio.Event()
    body = json.dumps(CHAT).encode()
    received = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        if (message := next(received, None)) is None:
            await left.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Message) -> None:
        sent.append(message)
        left.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1), "server": ("x", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    await closed.wait()
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_that_is_refused_late_says_so(app: FastAPI, stream: bool) -> None:
    class Creator:
        def leave_out_unknown(self, _: Any, body: Any) -> tuple[Any, list[str]]:
            return body, []

        async def find_or_start(self, *_: Any) -> ActiveResponse:
            record = StoredResponse(
                id="resp_1", key_id="key_1", previous_id=None, state="in_progress", background=False, echo={},
                created_at=1, idempotency_key=None, fingerprint="f", stored=False,
            )  # fmt: skip
            response = ActiveResponse(record, recorded=False)

            async def refuse() -> None:
                response.emit_snapshot("response.created")
                await asyncio.sleep(0.3)
                response.end("failed", {}, BadRequest("too long", param="input", code="context_length_exceeded"))

            response.begin(refuse())
            return response

    services = app.state.services
    fake: Any = SimpleNamespace(creator=Creator())
    app.state.services = dataclasses.replace(services, responses=fake)
    body = {"model": "starter-chat", "input": "hello", "stream": stream}
    status, text = await begun(app, "/v1/responses", body)
    if not stream:
        assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded"), "it waits, as before"
        return
    assert status == 200
    assert [each["type"] for each in objects(text)] == ["response.created", "error", "response.failed"]
    assert "data: [DONE]\n\n" in text
