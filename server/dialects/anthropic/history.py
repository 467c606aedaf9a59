"""The messages of a body, with a text for every block that can't be read.

Only what the user says last is refused for what can't be read in it. All else was said before, and its client can't
take it back: earlier messages, what tools return, and what stands beside it. Pure.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from server.dialects.anthropic.schema import AssistantBlock, ResultPart, UserBlock
from server.errors import BadRequest
from server.schemas.blocks import (
    as_history,
    as_list,
    fits,
    image_url_of,
    json_text,
    placeholder_text,
    strict_positions,
    text_of,
)

Json = dict[str, Any]
BLOCKS: dict[str, TypeAdapter[Any]] = {"user": TypeAdapter(UserBlock), "assistant": TypeAdapter(AssistantBlock)}
RESULT: TypeAdapter[Any] = TypeAdapter(ResultPart)
UNREADABLE = {  # types of blocks that clients of this protocol send, and what works in their place
    "document": "no files of this kind: send its text as a 'text' block, or images of its pages",
    "search_result": "no search results: send their text as 'text' blocks",
    "container_upload": "no uploaded files: send the text of the file as a 'text' block",
}


def readable_messages(messages: object) -> tuple[object, list[str]]:
    """Return the messages, and the paths of what a text stands for. What is no list of objects is left to the
    validation. Raises BadRequest for a block of the user's last words that no chat model here reads."""
    if (history := as_history(messages)) is None:
        return messages, []
    roles = [message.get("role") for message in history]
    strict = strict_positions([role == "user" for role in roles], [role == "assistant" for role in roles])
    left_out: list[str] = []
    return [_message(each, index, index in strict, left_out) for index, each in enumerate(history)], left_out


def _message(message: Json, index: int, is_last: bool, left_out: list[str]) -> Json:
    content, role, path = message.get("content"), message.get("role"), f"messages[{index}]"
    if isinstance(content, str) or (is_last and not (isinstance(content, list | Mapping) and content)):
        return message
    blocks = as_list(content)
    if role not in BLOCKS:  # instructions between messages are texts
        return {**message, "content": "\n".join(text_of(block) or placeholder_text(block) for block in blocks)}
    strict = is_last and role == "user" and not any(_is_result(block) for block in blocks)
    made = [_block(block, f"{path}.content[{i}]", str(role), strict, left_out) for i, block in enumerate(blocks)]
    return {**message, "content": made or ""}


def _block(block: Any, path: str, role: str, strict: bool, left_out: list[str]) -> Any:
    if _is_result(block) and role == "user":
        return {**block, "content": _result(block.get("content"), path, left_out)}
    made = _translate_block(block, sees=role == "user")
    if isinstance(block, Mapping) and block.get("type") == "tool_use" and not isinstance(block.get("input"), Mapping):
        made = {**block, "input": {} if block.get("input") is None else {"input": json_text(block["input"])}}
    if fits(BLOCKS[role], made):
        return made
    if strict:
        _check_readable(made, path)
        return made
    left_out.append(path)
    return {"type": "text", "text": placeholder_text(block)}


def _result(content: object, path: str, left_out: list[str]) -> Any:
    """Return what a tool returned, which is never refused."""
    if isinstance(content, str) or content is None or (isinstance(content, Mapping) and "type" not in content):
        return json_text(content)
    parts = []
    for index, part in enumerate(as_list(content)):
        made = _translate_block(part, sees=True)
        if not fits(RESULT, made):
            left_out.append(f"{path}.content[{index}]")
            made = {"type": "text", "text": placeholder_text(part)}
        parts.append(made)
    return parts


def _translate_block(block: Any, *, sees: bool) -> Any:
    """Return a block by this protocol's own words, if it is a text or an image in those of another."""
    if (text := text_of(block)) is not None:
        return {"type": "text", "text": text}
    url = image_url_of(block)
    if url is None or not sees or fits(RESULT, block):
        return block
    return {"type": "image", "source": {"type": "url", "url": url}}


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


def _check_readable(block: Any, path: str) -> None:
    """Refuse a block of a type that no chat model here reads. Raises BadRequest."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(kind, str) and kind in UNREADABLE:
        source = block.get("source")
        at = ".source.type" if kind == "document" and isinstance(source, Mapping) and "type" in source else ".type"
        message = f"This '{kind}' can't be read: this server's chat models read {UNREADABLE[kind]}."
        raise BadRequest(message, param=path + at, code="invalid_value")
