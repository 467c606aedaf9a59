"""Routes of other protocols, and chats that draw: the app with real routes, and events in place of the engines."""

import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pipelines.protocol.chat import (
    Admitted,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    TextDelta,
    ToolCallDelta,
)
from server.accounts.keys import Key
from server.app import create_app
from server.data_folders import REPOSITORY
from server.dialects.gemini.answers import SIGNATURE
from server.errors import ApiError, EngineFailure, ImageModerationBlocked, Overloaded
from server.flows.chat.completion import CompletionHead, CompletionWriter
from server.flows.chat.events import AnswerEvent, CallAdmitted, ImageDelta
from server.flows.chat.source import Chat, ChatCall
from server.flows.chat_images.conversation import Drawing
from server.http.deps import caller
from server.settings import Settings

GROUPS = frozenset({"chat", "beta-image-per-call", "alpha-image-per-call"})
KEY = Key("key_1", "n", "tail", GROUPS, None, datetime.now(UTC), None, None, None, None, False)
IMAGE = base64.b64encode(b"png").decode()
USER = {"role": "user", "content": "a boat"}
HELLO = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
DRAW = {**HELLO, "generationConfig": {"responseModalities": ["TEXT", "IMAGE"], "imageConfig": {"imageSize": "2K"}}}
CALLED = [
    Admitted(3, 0, ("reasoning_effort",)),
    TextDelta(0, "Hel"),
    TextDelta(0, "lo"),
    ToolCallDelta(0, 0, "{}", "call_1", "look"),
    ChoiceFinished(0, "tool_calls"),
    ChatFinished(ChatUsage(3, 4), 0.1),
]
DRAWN = [
    CallAdmitted(0, job="img_1", replayed=True),
    ImageDelta(0, IMAGE, "image/png"),
    ChoiceFinished(0, "stop"),
    ChatFinished(ChatUsage(2, 4096), 0.0),
]


class Events:
    """What answers every chat and every drawing, and what was asked."""

    def __init__(self) -> None:
        self.items: list[Any] = CALLED
        self.asked: list[Any] = []

    async def _play(self, *asked: Any, **_: Any) -> AsyncGenerator[AnswerEvent, None]:
        self.asked = list(asked)
        for item in self.items:
            if isinstance(item, ApiError):
                raise item
            if isinstance(item, float):
                await asyncio.sleep(item)
            else:
                yield item

    draw = respond = _play

    async def drop_unavailable_images(self, _: Any, drawing: Drawing) -> Drawing:
        return drawing

    async def prepare(self, call: ChatCall) -> Chat:
        return Chat(partial(self._play, call), CompletionWriter(CompletionHead.of_call(call.model.name)))

    async def count_tokens(self, call: ChatCall) -> int:
        return 7


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    home = tmp_path_factory.mktemp("home")
    made = create_app(Settings(home=home, weights=home, model_configs=REPOSITORY / "model_configs", database=None))
    made.dependency_overrides[caller] = lambda: KEY
    return made


@pytest.fixture
def events(app: FastAPI) -> Events:
    fake: Any = Events()
    services = app.state.services
    chats = dataclasses.replace(services.chats, any_model=fake, image=fake)
    app.state.services = dataclasses.replace(services, chats=chats)
    return fake


async def post(app: FastAPI, path: str, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        return await client.post(path, json=body)


def data(answer: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("base", ["/v1beta/models", "/v1/models"])
async def test_gemini_answers_at_once_in_events_and_as_an_array(app: FastAPI, events: Events, base: str) -> None:
    whole = await post(app, f"{base}/starter-chat:generateContent", HELLO)
    assert whole.status_code == 200, whole.text
    parts = whole.json()["candidates"][0]["content"]["parts"]
    called = {"functionCall": {"id": "call_1", "name": "look", "args": {}}, "thoughtSignature": SIGNATURE}
    assert parts == [{"text": "Hello"}, called]
    assert whole.headers["x-darkroom-ignored"] == "generationConfig.thinkingConfig"
    stream = await post(app, f"{base}/starter-chat:streamGenerateContent?alt=sse", HELLO)
    assert stream.headers["content-type"].startswith("text/event-stream")
    array = await post(app, f"{base}/starter-chat:streamGenerateContent", HELLO)
    assert [one["candidates"] for one in data(stream)] == [one["candidates"] for one in array.json()]
    assert "[DONE]" not in stream.text
    counted = await post(app, f"{base}/gemini-3-pro-image:countTokens", HELLO)
    assert counted.json() == {"totalTokens": 7}


async def test_a_waiting_stream_of_geminis_has_empty_lines_for_comments(app: FastAPI, events: Events) -> None:
    """Google's SDK raises at a comment."""
    services = app.state.services
    settings = services.settings.model_copy(update={"keepalive_s": 0.01})
    app.state.services = dataclasses.replace(services, settings=settings)
    try:
        first, *rest = DRAWN
        events.items = [first, 0.3, *rest]
        stream = await post(app, "/v1beta/models/beta-3-pro-image-count:streamGenerateContent?alt=sse", DRAW)
        chat = {"model": "starter-chat", "stream": True, "modalities": ["image"], "messages": [USER]}
        assert (await post(app, "/v1/chat/completions", chat)).text.startswith(": keep-alive\n\n")
    finally:
        app.state.services = services
    assert stream.text.startswith("\n")
    assert all(line.startswith("data: ") for line in stream.text.splitlines() if line)
    assert data(stream)


async def test_gemini_draws_with_the_model_of_the_resolution(app: FastAPI, events: Events) -> None:
    events.items = DRAWN
    answer = await post(app, "/v1beta/models/gemini-3-pro-image:generateContent", DRAW)
    assert answer.status_code == 200, answer.text
    (part,) = answer.json()["candidates"][0]["content"]["parts"]
    assert part == {"inlineData": {"mimeType": "image/png", "data": IMAGE}}
    assert (answer.headers["x-darkroom-job"], answer.headers["idempotency-replayed"]) == ("img_1", "true")
    request = events.asked[1]
    assert (request.model, request.prompt, request.endpoint) == ("beta-3-pro-image-hd-count", "hello", "gemini.images")


async def test_a_text_from_an_image_models_name_is_the_chat_models(app: FastAPI, events: Events) -> None:
    only_text = {**HELLO, "generationConfig": {"responseModalities": ["TEXT"]}}
    assert (await post(app, "/v1beta/models/gemini-3-pro-image:generateContent", only_text)).status_code == 200
    assert events.asked[0].model.name == "starter-chat"


async def test_refusals_and_failures_have_googles_shape(app: FastAPI, events: Events) -> None:
    path = "/v1beta/models/gemini-3-pro-image"
    events.items = [ImageModerationBlocked("no", "input", ["x"])]
    blocked = await post(app, f"{path}:generateContent", DRAW)
    assert (blocked.status_code, blocked.json()["promptFeedback"]["blockReason"]) == (200, "IMAGE_SAFETY")
    events.items = [DRAWN[0], ImageModerationBlocked("no", "output", ["x"])]
    *_, last = data(await post(app, f"{path}:streamGenerateContent?alt=sse", DRAW))
    assert last["candidates"][0]["finishReason"] == "IMAGE_SAFETY"
    events.items = [Overloaded("full", 3)]
    busy = await post(app, f"{path}:generateContent", DRAW)
    assert (busy.status_code, busy.json()["error"]["status"], busy.headers["retry-after"]) == (503, "UNAVAILABLE", "3")
    gone = await post(app, "/v1/models/gamma:generateContent", HELLO)
    assert (gone.status_code, gone.json()["error"]["status"]) == (404, "NOT_FOUND")
    large = {**HELLO, "generationConfig": {"responseModalities": ["IMAGE"], "imageConfig": {"imageSize": "4K"}}}
    refused = (await post(app, "/v1beta/models/gemini-2.5-flash-image:generateContent", large)).json()["error"]
    assert refused["details"][0]["metadata"] == {"field": "generationConfig.imageConfig.imageSize"}


async def test_a_chat_completion_of_an_image_model_has_its_image(app: FastAPI, events: Events) -> None:
    events.items = DRAWN
    body = {"model": "beta-3-pro-image-count", "messages": [{"role": "user", "content": "a boat"}], "top_p": 0.5}
    answer = await post(app, "/v1/chat/completions", body)
    (image,) = answer.json()["choices"][0]["message"]["images"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{IMAGE}"
    assert answer.headers["x-darkroom-ignored"] == "top_p"
    stream = await post(app, "/v1/chat/completions", {**body, "stream": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in data(stream)]
    assert [list(delta) for delta in deltas] == [["role", "content", "refusal"], ["images"], []]
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_a_chat_model_that_is_asked_for_images_gets_the_image_tool(app: FastAPI, events: Events) -> None:
    events.items = DRAWN
    body = {"messages": [{"role": "user", "content": "a boat"}], "modalities": ["image", "text"], "quality": "low"}
    answer = await post(app, "/v1/chat/completions", {**body, "image_config": {"aspect_ratio": "16:9"}, "n": 2})
    assert answer.status_code == 200, answer.text
    response = events.asked[1]
    (tool,) = response.tools
    assert (tool.size, tool.model, tool.quality) == ("16:9", "beta-2.5-flash-image-count", None)
    assert answer.headers["x-darkroom-ignored"] == "quality, n"


async def test_an_error_in_a_stream_of_messages_is_its_last_event(app: FastAPI, events: Events) -> None:
    events.items = [*CALLED[:2], EngineFailure("gone")]
    body = {"model": "starter-chat", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}], "stream": True}
    stream = await post(app, "/v1/messages", body)
    assert [event["type"] for event in data(stream)] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    events.items = [EngineFailure("gone")]
    failed = await post(app, "/v1/messages", body)
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "api_error")
    assert failed.headers["request-id"].startswith("req_")
