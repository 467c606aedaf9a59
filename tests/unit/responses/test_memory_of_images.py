"""Images of earlier rounds: few of their files are in memory at once, what is stored is an image, and how many there
may be."""

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.protocol.images import ImageJob
from server.accounts import conversations
from server.accounts.keys import KeyChanges, create_key
from server.data_folders import REPOSITORY
from server.flows.responses import items
from tests.support.file_counter import FileCounter
from tests.support.in_process import InProcess, in_process, png
from tests.support.polling import eventually

TOOLS = [{"type": "image_generation"}]


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def shown(*colours: str) -> dict[str, Any]:
    """A message of images."""
    parts = [{"type": "input_image", "image_url": uri(png(colour=colour))} for colour in colours]
    return {"role": "user", "content": parts}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path) as running:
        yield running


@pytest.fixture
async def seeing(tmp_path: Path) -> AsyncIterator[InProcess]:
    """An app whose chat model sees images."""
    configs = Path(shutil.copytree(REPOSITORY / "model_configs", tmp_path / "model_configs"))
    chat = configs / "chat.toml"
    chat.write_text(chat.read_text().replace("tools      = true", "tools = true\nvision = true"))
    async with in_process(tmp_path / "home", configs=configs) as running:
        yield running


async def post(app: InProcess, path: str, status: int = 200, **options: Any) -> Any:
    answer = await app.client.post(f"/v1/{path}", **options)
    assert answer.status_code == status, answer.text[:500]
    return answer.json()


async def begin(app: InProcess, *messages: dict[str, Any]) -> str:
    """A conversation with these messages."""
    name = str((await post(app, "conversations", json={}))["id"])
    for first in range(0, len(messages), 20):
        await post(app, f"conversations/{name}/items", json={"items": messages[first : first + 20]})
    return name


async def test_responses_at_once_have_one_file_in_memory(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would read all images of the conversation first, for a request of a hundred bytes."""
    name = await begin(app, shown("red", "green"), shown("blue", "teal"))
    files = FileCounter.install(monkeypatch)
    asked = (post(app, "responses", json={"input": f"Go on, {i}", "conversation": name}) for i in range(6))
    await asyncio.gather(*asked)
    assert (files.read, files.most) == (24, 1)


def calls_the_tool(app: InProcess, action: str) -> None:
    app.workers.call = ("image_generation", json.dumps({"prompt": "a boat", "action": action}))


async def test_the_image_of_an_edit_is_read_when_it_is_drawn(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await begin(app)
    await post(app, "responses", json={"input": [shown("red", "green")], "conversation": name, "tools": TOOLS})
    files = FileCounter.install(monkeypatch)
    calls_the_tool(app, "edit")
    app.workers.gate.clear()
    asked = {"input": "Make it blue", "conversation": name, "tools": TOOLS, "tool_choice": "required"}
    drawing = asyncio.create_task(post(app, "responses", json=asked | {"max_tool_calls": 1}))
    await eventually(lambda: len(app.workers.jobs) == 2)
    assert files.read == 0  # the chat model has not called the tool yet
    app.workers.gate.set()
    await drawing
    (edit,) = (job for job in app.workers.jobs if isinstance(job, ImageJob))
    assert (len(edit.references), files.read, files.most) == (1, 1, 1)


async def test_a_chain_goes_on_without_an_image_that_was_deleted(app: InProcess) -> None:
    calls_the_tool(app, "generate")
    asked = {"input": "A boat", "tools": TOOLS, "tool_choice": "required", "max_tool_calls": 1}
    first = await post(app, "responses", json=asked)
    (drawn,) = (item for item in first["output"] if item["type"] == "image_generation_call")
    name = drawn["url"].rpartition("/")[2]
    assert (await app.client.delete(f"/v1/darkroom/results/{name}")).status_code == 200
    app.services.stores.files.delete([name])
    ran = len(app.workers.jobs)
    more = {**asked, "input": "Another", "previous_response_id": first["id"]}
    answer = await app.client.post("/v1/responses", json=more)
    assert (answer.status_code, answer.headers["x-darkroom-ignored"]) == (200, "previous_response_id")
    (drawing,) = (job for job in app.workers.jobs[ran:] if isinstance(job, ImageJob))
    assert not drawing.references


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": uri(bytes(1000))}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": uri(png()[:40])}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64"}]},
        {"type": "image_generation_call", "id": "ig_1", "result": base64.b64encode(bytes(1000)).decode()},
    ],
)
async def test_what_is_no_image_is_not_stored(app: InProcess, item: dict[str, Any]) -> None:
    name = await begin(app)
    refused = [
        await post(app, "conversations", 400, json={"items": [item]}),
        await post(app, f"conversations/{name}/items", 400, json={"items": [item]}),
        await post(app, "responses", 400, json={"input": [item], "tools": TOOLS}),
    ]
    assert [one["error"]["code"] for one in refused] == ["invalid_image_file"] * 3
    assert [one["error"]["param"] for one in refused] == ["items", "items", "input"]
    assert not list(app.services.settings.results.glob("??/*"))


async def test_items_with_images_count_as_calls(app: InProcess) -> None:
    database = app.services.stores.database
    limits = KeyChanges(per_minute=2)
    _, secret = await asyncio.to_thread(create_key, database, "slow", frozenset({"chat"}), limits=limits)
    headers = {"Authorization": f"Bearer {secret}"}
    for _ in range(2):
        await post(app, "conversations", json={"items": [shown("red")]}, headers=headers)
    await post(app, "conversations", 429, json={"items": [shown("red")]}, headers=headers)
    await post(app, "conversations", json={"items": [{"role": "user", "content": "text"}]}, headers=headers)


async def test_a_model_that_sees_is_shown_32_images_at_most(seeing: InProcess) -> None:
    name = await begin(seeing, *[shown("red", "green") for _ in range(16)])
    await post(seeing, "responses", json={"input": [shown("blue")], "conversation": name})
    job = seeing.workers.jobs[-1]
    parts = [part for message in job.messages for part in message["content"]]
    assert parts[0] == {"type": "text", "text": "[image]"}
    assert [part["type"] for part in parts[1:]] == ["image_url"] * 32
    assert [bytes(image.data[:3]) for image in job.images][:2] == [bytes((0, 128, 0)), bytes((255, 0, 0))]
    assert len(job.images) == 32


async def test_32_images_are_shown_as_they_are(seeing: InProcess) -> None:
    name = await begin(seeing, *[shown("red", "green") for _ in range(16)])
    await post(seeing, "responses", json={"input": "What is this?", "conversation": name})
    assert len(seeing.workers.jobs[-1].images) == 32


async def test_a_page_ends_where_its_images_fill_it(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    colours = ["red", "green", "blue", "teal", "pink"]
    name = await begin(app, *map(shown, colours))
    answer = await post(app, "responses", json={"input": [*map(shown, colours)], "tools": TOOLS})
    monkeypatch.setattr(items, "PAGE_CHARACTERS", len(uri(png())) + 1)  # one image leaves room for another
    for path in (f"conversations/{name}/items", f"responses/{answer['id']}/input_items"):
        seen, after, sizes = [], "", []
        while True:
            shown_page = await app.client.get(f"/v1/{path}?order=asc&limit=100{after}")
            page = shown_page.json()
            seen += [item["content"][0]["image_url"] for item in page["data"]]
            sizes.append(len(page["data"]))
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == [uri(png(colour=colour)) for colour in colours]
        assert sizes == [2, 2, 1]


async def test_compaction_returns_the_newest_images(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PAGE_CHARACTERS", len(uri(png())) + 1)
    colours = ["red", "green", "blue"]
    first = await post(app, "responses", json={"input": [*map(shown, colours)], "tools": TOOLS})
    answer = await post(app, "responses/compact", json={"model": "starter-chat", "previous_response_id": first["id"]})
    parts = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
    assert [part["type"] for part in parts] == ["input_text", "input_image", "input_image"]
    assert parts[0]["text"] == "[image]"
    assert [part["image_url"] for part in parts[1:]] == [uri(png(colour=colour)) for colour in colours[1:]]


async def test_what_a_key_puts_in_is_bounded(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_IMAGES", 2)
    name = await begin(app, shown("red", "green"))
    for path in ("conversations", f"conversations/{name}/items"):
        refused = (await post(app, path, 400, json={"items": [shown("blue")]}))["error"]
        assert (refused["param"], refused["code"]) == ("items", "too_many_pictures")
    assert (await app.client.delete(f"/v1/conversations/{name}")).status_code == 200
    name = await begin(app, shown("blue"))
    monkeypatch.setattr(conversations, "MAX_ITEM_BYTES", 2000)
    for status in (200, 400):
        text = {"role": "user", "content": "x" * 1000}
        answer = await post(app, f"conversations/{name}/items", status, json={"items": [text]})
    assert (answer["error"]["param"], answer["error"]["code"]) == ("items", "string_above_max_length")
