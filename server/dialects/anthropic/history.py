"""The conversation of a body of Messages.

`readable_messages` brings blocks into this protocol's own words: only what the user says last is refused for what can't
be read in it. All else was said before, and its client can't take it back: earlier messages, what tools return, and
what stands beside it. `read_turns` reads the valid messages. Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from server.conversation.blocks import as_history, as_list, json_text, placeholder_text, strict_positions, text_of
from server.conversation.own_words import OwnWords, typed
from server.conversation.turns import Block, Call, Image, Result, Turn
from server.dialects.anthropic.schema import (
    AssistantBlock,
    AssistantTurn,
    Base64Source,
    DocumentBlock,
    ImageBlock,
    ResultPart,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
    UserBlock,
    UserTurn,
)

Json = dict[str, Any]


def _image(url: str, _: Mapping[str, Any]) -> Json:
    return {"type": "image", "source": {"type": "url", "url": url}}


WORDS = {
    "user": OwnWords(UserBlock, typed("text"), _image),
    "assistant": OwnWords(AssistantBlock, typed("text")),
}
RESULT = OwnWords(ResultPart, typed("text"), _image)


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
    if role not in WORDS:  # instructions between messages are texts
        return {
            **message,
            "content": [{"type": "text", "text": text_of(one) or placeholder_text(one)} for one in blocks],
        }
    strict = is_last and role == "user" and not any(_is(block, "tool_result") for block in blocks)
    made = [_block(block, f"{path}.content[{i}]", str(role), strict, left_out) for i, block in enumerate(blocks)]
    return {**message, "content": made or ""}


def _block(block: Any, path: str, role: str, strict: bool, left_out: list[str]) -> Any:
    if _is(block, "tool_result") and role == "user":
        block = {**block, "content": RESULT.read_result(block.get("content"), f"{path}.content", left_out)}
    if _is(block, "tool_use") and not isinstance(block.get("input"), Mapping):
        block = {**block, "input": {} if block.get("input") is None else {"input": json_text(block["input"])}}
    return WORDS[role].read(block, path, left_out, strict=strict)


def _is(block: Any, kind: str) -> bool:
    return isinstance(block, Mapping) and block.get("type") == kind


def read_turns(
    system: str | Sequence[TextBlock], messages: Iterable[UserTurn | AssistantTurn | SystemTurn]
) -> Iterator[Turn | Result]:
    """Yield the turns and results of a valid body. Each result of a tool is one of its own, before the user's words."""
    if any(texts := _blocks(system)):
        yield Turn("system", texts)
    for message in messages:
        blocks = _blocks(message.content)
        if isinstance(message, AssistantTurn):
            content = message.content if isinstance(message.content, list) else []
            thoughts = [block.thinking for block in content if isinstance(block, ThinkingBlock) and block.thinking]
            calls = [_call(block) for block in content if isinstance(block, ToolUseBlock)]
            if isinstance(message.content, str) or any(blocks) or thoughts or calls:
                yield Turn("assistant", blocks, thoughts, calls)
            continue
        results = [one for one in message.content if isinstance(one, ToolResultBlock)]
        yield from (Result(_blocks(one.content), one.tool_use_id, failed=one.is_error) for one in results)
        if blocks or not results:
            yield Turn(message.role, blocks)


def _blocks(content: str | Iterable[Any]) -> list[Block]:
    """Return the texts and images of a content."""
    found = [content] if isinstance(content, str) else [_read(block) for block in content]
    return [block for block in found if block is not None]


def _read(block: Any) -> Block | None:
    match block:
        case TextBlock(text=text):
            return text
        case DocumentBlock():
            return text_of(block.model_dump())
        case ImageBlock(source=UrlSource(url=url)):
            return Image(url)
        case ImageBlock(source=Base64Source(media_type=media_type, data=data)):
            return Image(f"data:{media_type};base64,{data}")
    return None


def _call(block: ToolUseBlock) -> Call:
    return Call(block.name, json.dumps(block.input, ensure_ascii=False), block.id)
