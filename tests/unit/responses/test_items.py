"""Items as they are sent, stored and shown: images leave the body for files, and come back."""

import base64
import uuid
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from server.accounts.response_items import StoredItem
from server.backends.decoding.data_uri import decode_data_uri
from server.backends.storage import LocalStorage
from server.flows.responses.items import has_data_uri, render, store_images, to_stored, with_images
from server.flows.responses.planner import _new_texts
from server.schemas.response_items import Item
from server.schemas.responses import ResponseBody
from server.schemas.validation import validate

ITEM: TypeAdapter[Any] = TypeAdapter(Item)
URI = "data:image/webp;base64," + base64.b64encode(b"pixels").decode()


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


async def stored(item: StoredItem, storage: LocalStorage) -> StoredItem:
    """With its images in files, unchecked."""

    async def store(uri: str, extension: str) -> str:
        name = f"{uuid.uuid4().hex}.{extension}"
        storage.write(name, decode_data_uri(uri))
        return name

    return await store_images(item, store)


def sent(**value: Any) -> StoredItem:
    return to_stored(ITEM.validate_python(value))


def test_a_message_may_come_without_type_id_or_parts() -> None:
    body = sent(role="user", content="hello").body
    assert body["type"] == "message"
    assert body["id"].startswith("msg_")
    assert body["content"] == [{"type": "input_text", "text": "hello"}]
    assert sent(role="assistant", content="hi").body["content"][0]["type"] == "output_text"


def test_ids_that_are_sent_are_kept() -> None:
    assert sent(type="message", id="msg_1", role="user", content="x").id == "msg_1"
    assert sent(type="function_call", call_id="c", name="f", arguments="{}").id.startswith("fc_")


async def test_an_image_inside_a_message_becomes_a_file_and_comes_back(storage: LocalStorage) -> None:
    item = sent(role="user", content=[{"type": "input_image", "image_url": URI}])
    assert has_data_uri(item)
    written = await stored(item, storage)
    (name,) = written.files
    assert name.endswith(".webp")
    assert storage.read(name) == b"pixels"
    assert "base64" not in str(written.body)
    assert not has_data_uri(written)
    assert render(written, storage)["content"][0]["image_url"] == URI


async def test_a_url_stays_what_it_is(storage: LocalStorage) -> None:
    item = sent(role="user", content=[{"type": "input_image", "image_url": "https://example.org/a.png"}])
    assert not has_data_uri(item)
    assert await stored(item, storage) == item
    assert item.files == []


def test_a_stored_file_can_not_be_read_by_its_name(storage: LocalStorage) -> None:
    storage.write("0" * 32 + ".png", b"secret")
    part = {"type": "input_image", "image_url": "https://x/y", "file": "0" * 32 + ".png"}
    shown = render(sent(role="user", content=[part]), storage)["content"][0]
    assert shown == {"type": "input_image", "image_url": "https://x/y", "detail": "auto"}


def test_thoughts_that_are_sent_back_name_no_files(storage: LocalStorage) -> None:
    thought = {"type": "input_image", "file": "0" * 32 + ".png", "text": "hm"}
    item = sent(type="reasoning", id="rs_1", content=[thought])
    assert item.files == []
    assert render(item, storage)["content"] == [{"type": "input_image", "text": "hm"}]


async def test_a_drawn_image_that_is_sent_in_full_becomes_a_file(storage: LocalStorage) -> None:
    item = sent(type="image_generation_call", id="ig_1", result=base64.b64encode(b"png").decode())
    assert has_data_uri(item)
    written = await stored(item, storage)
    (name,) = written.files
    assert written.image == name
    assert base64.b64decode(render(written, storage)["result"]) == b"png"


def test_an_image_whose_file_is_gone_is_null(storage: LocalStorage) -> None:
    body = {"id": "ig_1", "type": "image_generation_call", "status": "completed"}
    assert render(StoredItem("output", body, "0" * 32 + ".png"), storage)["result"] is None


def test_events_lose_their_images_and_get_them_back() -> None:
    item = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "abc"}
    event = {"type": "response.completed", "response": {"output": [item]}}
    slim = with_images(event, {})
    assert slim["response"]["output"][0]["result"] is None
    assert with_images(slim, {"ig_1": "abc"}) == event


def test_moderation_reads_all_that_the_model_is_shown() -> None:
    fields = {
        "model": "m",
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "b"}]},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"at": "\\u0063"}'},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "d"}]},
            {"type": "image_generation_call", "id": "ig_1", "result": "aGk=", "revised_prompt": "e"},
        ],
        "tools": [{"type": "function", "name": "find", "description": "f"}],
    }
    body = validate(ResponseBody, fields, strict=True)
    assert isinstance(body.input, list)
    read = "\n".join(_new_texts(body, [to_stored(item) for item in body.input]))
    assert {"be kind", *"abcdef", "look", "at", "find"} <= set(read.split("\n"))
