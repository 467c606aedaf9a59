"""Items between clients and the database. The database has the file name of an image; clients get its bytes."""

import base64
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_core import from_json

from server.accounts.response_items import StoredItem
from server.backends.storage import Storage
from server.errors import BadRequest
from server.schemas.response_answers import InputItem, Role, SentMessage, SentPart, text_part
from server.schemas.response_items import (
    CompactionItem,
    CustomCallItem,
    FunctionCallItem,
    FunctionOutputItem,
    ImageCallItem,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    Refusal,
)

DATA_URI = re.compile(r"data:(?:image/(png|jpeg|webp|gif)\b)?", re.IGNORECASE)
PAGE_CHARACTERS = 32 * 1024**2  # of images in base64: what one answer may make the server read
PARTS = {"message": "content", "function_call_output": "output", "custom_tool_call_output": "output"}  # with images
PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "image_generation_call": "ig",
    "compaction": "cmp",
    # of tools that this server does not run
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
}


def new_id(kind: str) -> str:
    """Return a new id for an item of this type."""
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def user_text(text: str) -> StoredItem:
    """Return the user message that a plain string as `input` stands for."""
    return StoredItem("input", _message("user", [{"type": "input_text", "text": text}]))


def to_stored(item: Item) -> StoredItem:
    """Return the stored form of an item that was sent in full. Item references and bare image calls are looked up
    instead. Raises BadRequest."""
    if isinstance(item, MessageItem):
        return StoredItem("input", _message(item.role, _parts(item.role, item.content), item.id))
    if isinstance(item, CompactionItem):
        read_summary(item.encrypted_content)
    body = item.model_dump(exclude_none=True, exclude={"result"})
    body["id"] = item.id or new_id(item.type)
    if isinstance(item, FunctionCallItem | CustomCallItem | FunctionOutputItem | ImageCallItem):
        body["status"] = "completed"
    if isinstance(item, ImageCallItem) and item.result:
        body["image_url"] = f"data:image/png;base64,{item.result}"
    elif isinstance(item, ImageCallItem):
        body["status"] = "failed"
    if isinstance(item, ReasoningItem):
        body["content"] = [{"type": part.get("type"), "text": part.get("text")} for part in item.content or ()]
    if isinstance(item, FunctionOutputItem) and not isinstance(item.output, str):
        body["output"] = [_part(part) for part in item.output]
    return StoredItem("input", body)


def write_summary(summary: str) -> str:
    """Encode a summary as the content of a compaction item, or thoughts as that of a reasoning item: opaque to clients,
    but not secret."""
    return base64.urlsafe_b64encode(json.dumps({"summary": summary}).encode()).decode()


def read_summary(content: str) -> str:
    """Decode what `write_summary` has encoded. Raises BadRequest if another server has made it."""
    try:
        summary = from_json(base64.urlsafe_b64decode(content))["summary"]
    except (ValueError, TypeError, KeyError) as error:
        message = "This compaction can't be read: it was not made by this server."
        raise BadRequest(message, param="input", code="invalid_value") from error
    return str(summary)


def render(item: StoredItem, storage: Storage) -> InputItem:
    """Return the item as clients get it. An image that was deleted is null. Reads files: call it in a thread."""
    body = dict(item.body)  # JSON of the database, of which no type is known
    if body["type"] == "image_generation_call":
        body["result"] = _base64(storage, item.image) if item.image else None
        body.pop("image_url", None)
    elif parts := parts_of(item):
        body[PARTS[body["type"]]] = [_with_bytes(part, storage) for part in parts]
    return cast("InputItem", body)


def without_images(item: StoredItem) -> StoredItem:
    """Return the item with a text in the place of a message's images, so that it is rendered without reading files."""
    mark, parts = {"type": "input_text", "text": "[image]"}, parts_of(item)
    return with_parts(item, [mark if one["type"] == "input_image" else one for one in parts]) if parts else item


async def render_page(items: Sequence[StoredItem], storage: Storage) -> list[InputItem]:
    """Return the items as clients get them, up to the one whose images fill the page."""
    page: list[InputItem] = []
    characters = 0
    for item in items:
        page.append(shown := await storage.in_thread(render, item, storage))
        characters += _image_characters(shown)
        if characters >= PAGE_CHARACTERS:
            break
    return page


def _image_characters(item: InputItem) -> int:
    """Return how long the images of an item are, as base64 or as URLs."""
    if item["type"] == "image_generation_call":
        return len(item["result"] or "")
    parts: object = item.get(PARTS.get(item["type"], ""))
    return sum(len(part.get("image_url") or "") for part in parts) if isinstance(parts, list) else 0


def with_images(value: Any, images: Mapping[str, str | None]) -> Any:
    """Return JSON in which every completed image_generation_call has its bytes from `images` (by item id), or null."""
    if isinstance(value, list):
        return [with_images(one, images) for one in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("type") == "image_generation_call" and value.get("status") == "completed":
        return {**value, "result": images.get(value["id"])}
    return {name: with_images(one, images) for name, one in value.items()}


async def store_images(item: StoredItem, store: Callable[[str, str], Awaitable[str]]) -> StoredItem:
    """Move the data URIs of an item to files: `store` writes one, with an extension, and returns the file's name.

    A stored part has a `file` instead of an image_url. No client can send one: `to_stored` drops it.
    """
    if is_sent_drawing(item):
        body = {name: value for name, value in item.body.items() if name != "image_url"}
        return StoredItem(item.side, body, await store(item.body["image_url"], "png"))
    parts: list[Mapping[str, Any]] = []
    for part in parts_of(item):
        if match := _data_uri(part):
            name = await store(part["image_url"], (match[1] or "png").lower())
            part = {"type": "input_image", "detail": part["detail"], "file": name}
        parts.append(part)
    return with_parts(item, parts) if parts else item


def has_data_uri(item: StoredItem) -> bool:
    """Return whether `store_images` would write a file."""
    return is_sent_drawing(item) or any(_data_uri(part) for part in parts_of(item))


def parts_of(item: StoredItem) -> Sequence[Mapping[str, Any]]:
    """Return the parts of a message or of a tool's output; none of a text, or of an item of another kind."""
    parts = item.body.get(PARTS.get(item.body["type"], ""))
    return parts if isinstance(parts, list) else ()


def with_parts(item: StoredItem, parts: Sequence[Mapping[str, Any]]) -> StoredItem:
    """Return the item with other parts."""
    return replace(item, body={**item.body, PARTS[item.body["type"]]: list(parts)})


def is_sent_drawing(item: StoredItem) -> bool:
    """Return whether an item is a drawn image that was sent in full: no route has decoded it yet."""
    return item.body["type"] == "image_generation_call" and item.image is None and "image_url" in item.body


def _data_uri(part: Mapping[str, Any]) -> re.Match[str] | None:
    return DATA_URI.match(str(part.get("image_url", "")))


def _message(role: Role, content: list[SentPart], item_id: str | None = None) -> SentMessage:
    return {
        "id": item_id or new_id("message"),
        "type": "message",
        "status": "completed",
        "role": role,
        "content": content,
    }


def _parts(role: Role, content: str | Sequence[Part]) -> list[SentPart]:
    if not isinstance(content, str):
        return [_part(part) for part in content]
    return [text_part(content) if role == "assistant" else {"type": "input_text", "text": content}]


def _part(part: Part) -> SentPart:
    match part:
        case InputImage():
            return {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}
        case InputText():
            return {"type": "input_text", "text": part.text}
        case OutputText():
            return text_part(part.text)
        case Refusal():
            return {"type": "refusal", "refusal": part.refusal}


def _with_bytes(part: Mapping[str, Any], storage: Storage) -> Mapping[str, Any]:
    if "file" not in part:
        return part
    name = str(part["file"])
    data = _base64(storage, name)
    uri = None if data is None else f"data:image/{name.rpartition('.')[2]};base64,{data}"
    return {"type": "input_image", "detail": part["detail"], "image_url": uri}


def _base64(storage: Storage, name: str) -> str | None:
    try:
        return base64.b64encode(storage.read(name)).decode()
    except FileNotFoundError:
        return None
