"""Images and items of earlier messages that can't be loaded any more: a text stands for them, in every protocol."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from server.data_folders import REPOSITORY
from tests.support.in_process import InProcess, in_process, png

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOST = {  # how an image may be that can't be loaded
    "a dead link": "http://127.0.0.1:9/a.png",
    "a deleted result": "http://test/cdn/0123456789abcdef0123456789abcdef.png",
    "no image": f"data:image/png;base64,{base64.b64encode(b'no image').decode()}",
    "no base64": "data:image/png;base64,*",
    "no URL": "a.png",
}
GOOD = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
PROTOCOLS = ("chat", "responses", "messages", "gemini")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    """A server whose chat model sees."""
    home = tmp_path_factory.mktemp("home")
    configs = home / "configs"
    configs.mkdir()
    for path in (REPOSITORY / "model_configs").iterdir():
        text = path.read_text()
        (configs / path.name).write_text(text.replace("tools      = true", "tools = true\nvision = true"))
    async with in_process(home, configs=configs) as running:
        yield running


def said(protocol: str, *turns: tuple[str, str, str | None]) -> tuple[str, dict[str, Any]]:
    """Return the path and body of a conversation: of each turn the role, the text, and the URL of an image."""
    messages: list[dict[str, Any]] = []
    for role, text, url in turns:
        if protocol == "gemini":
            image = [{"fileData": {"fileUri": url}}] if url else []
            messages.append({"role": "model" if role == "assistant" else role, "parts": [{"text": text}, *image]})
            continue
        kind = {"responses": "output_text" if role == "assistant" else "input_text"}.get(protocol, "text")
        shown: dict[str, dict[str, Any]] = {
            "chat": {"type": "image_url", "image_url": {"url": url}},
            "responses": {"type": "input_image", "image_url": url},
            "messages": {"type": "image", "source": {"type": "url", "url": url}},
        }
        parts = [{"type": kind, "text": text}, *([shown[protocol]] if url else [])]
        messages.append({"role": role, "content": parts})
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": messages}),
        "responses": ("/v1/responses", {"input": messages}),
        "messages": ("/v1/messages", {"model": "starter-chat", "max_tokens": 9, "messages": messages}),
        "gemini": ("/v1beta/models/starter-chat:generateContent", {"contents": messages}),
    }
    return bodies[protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", LOST)
async def test_a_lost_image_of_an_earlier_message_is_a_text_and_named(app: InProcess, protocol: str, kind: str) -> None:
    turns = (("user", "Who?", LOST[kind]), ("assistant", "Nobody.", None), ("user", "And here?", GOOD))
    path, body = said(protocol, *turns)
    answer = await app.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    job = app.workers.jobs[-1]
    assert len(job.images) == 1
    assert "[image]" in str(job.messages[0])
    assert "image_url" in str(job.messages[-1])
    named = answer.headers["x-darkroom-ignored"].split(", ")
    places = {
        "chat": "messages[0].content[1].image_url",
        "responses": "input[0].content[1]",
        "messages": "messages",
        "gemini": "contents",
    }
    assert named == [places[protocol]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_lost_image_of_the_last_message_is_refused(app: InProcess, protocol: str) -> None:
    path, body = said(protocol, ("user", "Hi", None), ("assistant", "Hi", None), ("user", "Who?", LOST["no image"]))
    answer = await app.client.post(path, json=body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["a dead link", "no image"])
async def test_an_agent_goes_on_when_the_image_of_its_task_is_lost(app: InProcess, protocol: str, kind: str) -> None:
    path, body = said(protocol, ("user", "Who?", LOST[kind]))
    (task,) = next(value for value in body.values() if isinstance(value, list))
    call = {"name": "look", "arguments": "{}"}
    more: dict[str, list[dict[str, Any]]] = {
        "chat": [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ],
        "responses": [
            {"type": "function_call", "call_id": "c1", **call},
            {"type": "function_call_output", "call_id": "c1", "output": "x"},
        ],
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}]},
        ],
        "gemini": [
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
            {"role": "function", "parts": [{"functionResponse": {"name": "look", "response": {}}}]},
        ],
    }
    sent = {name: [task, *more[protocol]] if isinstance(value, list) else value for name, value in body.items()}
    answer = await app.client.post(path, json=sent)
    assert answer.status_code == 200, answer.text
    assert "[image]" in str(app.workers.jobs[-1].messages[0])
    assert not app.workers.jobs[-1].images


async def test_a_lost_image_of_a_tool_is_a_text(app: InProcess) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    seen = {"type": "image_url", "image_url": {"url": LOST["a dead link"]}}
    messages = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [seen]},
    ]
    answer = await app.client.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-darkroom-ignored"] == "messages[2].content[0].image_url"
    assert not app.workers.jobs[-1].images


async def test_an_unknown_item_before_the_end_is_a_text_and_named(app: InProcess) -> None:
    reference = {"type": "item_reference", "id": "msg_gone"}
    drawn = {"type": "image_generation_call", "id": "ig_gone", "status": "completed"}
    body = {"input": [{"role": "user", "content": "Hi"}, reference, drawn, {"role": "user", "content": "More"}]}
    answer = await app.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-darkroom-ignored"] == "input[1], input[2]"
    assert "[item: msg_gone]" in str(app.workers.jobs[-1].messages)
    refused = await app.client.post("/v1/responses", json={"input": [{"role": "user", "content": "Hi"}, reference]})
    assert refused.json()["error"]["param"] == "input[1].id"


async def test_a_lost_drawing_of_the_input_is_left_out(app: InProcess) -> None:
    drawn = {"type": "image_generation_call", "id": "ig_1", "result": base64.b64encode(b"no image").decode()}
    body = {"input": [{"role": "user", "content": "Draw"}, drawn, {"role": "user", "content": "More"}]}
    answer = await app.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-darkroom-ignored"] == "input[1].result"


async def test_an_image_model_draws_on_without_a_lost_image(app: InProcess) -> None:
    turns = (("user", "A boat", LOST["a dead link"]), ("assistant", "Here", None), ("user", "Make it blue", None))
    path, body = said("chat", *turns)
    answer = await app.client.post(path, json={**body, "model": "gpt-image-1"})
    assert answer.status_code == 200, answer.text
    assert "messages[0].content[1].image_url" in answer.headers["x-darkroom-ignored"].split(", ")
    assert not app.workers.jobs[-1].references
