"""From the JSON of a request to the body of a response, with what is left out of it, and a text for every item and part
that can't be read.

Parts in the words of another protocol are read everywhere. Only the user's last message, or an unknown item at the end,
is refused for what can't be read in it: all else was said before, and its client can't take it back. Pure.
"""

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from server.conversation.blocks import (
    as_history,
    fits,
    is_answer,
    json_text,
    placeholder_text,
    strict_positions,
)
from server.conversation.own_words import OwnWords, detail_of, typed
from server.errors import BadRequest
from server.flows.chat.tools import normalise_tools
from server.flows.responses.items import read_summary
from server.schemas.extra_fields import refuse_unsupported, unknown_keys
from server.schemas.response_items import Id, Item, OutputPart, OutputText, Refusal, Status
from server.schemas.response_object import Json
from server.schemas.response_tools import leave_out_hosted_tools
from server.schemas.responses import UNSUPPORTED, CompactBody, Include, ResponseBody
from server.schemas.validation import validate

INCLUDES = get_args(Include)


def read_response(values: Json) -> tuple[ResponseBody, list[str]]:
    """Return the body, and the paths of what can't be read or run here. Raises BadRequest for the first invalid
    field."""
    refuse_unsupported(values, UNSUPPORTED)
    known, tools = leave_out_hosted_tools(normalise_tools(values, _flatten_tool))
    items, left_out = readable_input(values.get("input"))
    included, others = _readable_include(values.get("include"))
    shaped = {**known, **_flat_format(values), "include": included}
    body = validate(ResponseBody, {**shaped, "input": items}, strict=True)
    return body, [*tools, *left_out, *others, *unknown_keys(body, shaped)]


def read_compaction(values: Json) -> tuple[CompactBody, list[str]]:
    """Return the body of a compaction likewise. Raises BadRequest."""
    items, left_out = readable_input(values.get("input"))
    body = validate(CompactBody, {**values, "input": items}, strict=True)
    return body, [*left_out, *unknown_keys(body, values)]


def _readable_include(sent: Any) -> tuple[Any, list[str]]:
    """Return what the answer shall have without what no answer here has, and the paths of that."""
    if not isinstance(sent, list):
        return sent, []
    others = [f"include[{index}]" for index, name in enumerate(sent) if name not in INCLUDES]
    return [name for name in sent if name in INCLUDES], others


def _flatten_tool(tool: Any) -> Any:
    """Return the tool with what a chat has below `function` beside its type."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return tool
    inner = tool.get("function")
    if not isinstance(inner, Mapping) or "name" in tool:
        return {"type": "function", **tool}
    return {**{name: value for name, value in tool.items() if name != "function"}, **inner, "type": "function"}


def _flat_format(values: Mapping[str, Any]) -> Json:
    """Return the format of the answer with what a chat has below `json_schema` beside its type."""
    text = values.get("text")
    sent = text.get("format") if isinstance(text, Mapping) else None
    inner = sent.get("json_schema") if isinstance(sent, Mapping) else None
    if not isinstance(text, Mapping) or not isinstance(inner, Mapping):
        return {}
    return {"text": {**text, "format": {**inner, "type": "json_schema"}}}


ITEM: TypeAdapter[Any] = TypeAdapter(Item)
STATUS: TypeAdapter[Any] = TypeAdapter(Status)
ID: TypeAdapter[Any] = TypeAdapter(Id)
OUTPUTS = {"function_call_output", "custom_tool_call_output"}
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
ANY_STATUS = {"image_generation_call", "web_search_call"}  # a failed image says so to the model
DETAILS = frozenset({"auto", "low", "high", "original"})


def _image(url: str, sent: Mapping[str, Any]) -> Json:
    return {"type": "input_image", "image_url": url, **detail_of(sent, DETAILS)}


INPUT = OwnWords(OutputPart, typed("input_text"), _image)  # of the user, and what a tool returned
OUTPUT = OwnWords(Annotated[OutputText | Refusal, Field(discriminator="type")], typed("output_text"))


def readable_input(sent: object, field: str = "input") -> tuple[object, list[str]]:
    """Return the input, and the paths in this field of what a text stands for. What is no list of objects is left to
    the validation. Raises BadRequest for a part of the user's last message that no chat model here reads."""
    if (history := as_history(sent)) is None:
        return sent, []
    last = strict_positions([item.get("role") == "user" for item in history], [*map(is_answer, history)])
    strict = {index for index in last if not _is_foreign_output(history[index])}
    left_out: list[str] = []
    items = [_item(item, f"{field}[{i}]", left_out, strict=i in strict) for i, item in enumerate(history)]
    for index, item in enumerate(items):
        if index not in strict and not _is_known(item):
            left_out.append(f"{field}[{index}]")
            items[index] = _message(item, placeholder_text(item))
    return items, left_out


def _item(item: Json, path: str, left_out: list[str], *, strict: bool) -> Json:
    """Return the item by this protocol's own words."""
    kind = item.get("type")
    if item.get("role") == "tool" and kind in {None, "message"}:  # as a chat has it
        call_id, output = item.get("tool_call_id") or item.get("call_id"), item.get("content")
        item, kind = {"type": "function_call_output", "call_id": call_id, "output": output}, "function_call_output"
    made = {name: value for name, value in item.items() if not _is_foreign(name, value, kind)}
    if kind in OUTPUTS:
        return {**made, "output": INPUT.read_result(item.get("output"), f"{path}.output", left_out)}
    if kind in CALLS and not isinstance(item.get(CALLS[kind]), str):
        return {**made, CALLS[kind]: json_text(item.get(CALLS[kind])) or "{}"}
    if kind == "reasoning":
        own = _own_thoughts(item)
        left_out += [f"{path}.encrypted_content"] if item.get("encrypted_content") and not own else []
        item = {**item, **own}
        return {**made, "summary": _thoughts(item.get("summary")), "content": _thoughts(item.get("content"))}
    if kind == "image_generation_call" and item.get("result") and "id" not in made:
        return {**made, "id": f"ig_{uuid.uuid4().hex}"}
    if kind not in {None, "message"} or "role" not in item:
        return made
    content = item.get("content")
    if isinstance(content, str) or (strict and not (isinstance(content, list | Mapping) and content)):
        return made
    words, strict = (OUTPUT, False) if item["role"] == "assistant" else (INPUT, strict)
    return {**made, "content": words.read_all(content, f"{path}.content", left_out, strict=strict) or ""}


def _is_foreign_output(item: Json) -> bool:
    """Return whether an item is what a tool of another server returned, such as a screenshot."""
    kind = str(item.get("type"))
    return kind.endswith("_output") and kind not in OUTPUTS


def _is_foreign(name: str, value: object, kind: object) -> bool:
    """Return whether a field of an item has a value that changes nothing: another server's status, an empty id."""
    if name == "status" and kind not in ANY_STATUS:
        return not fits(STATUS, value)
    return name == "id" and not fits(ID, value)


def _thoughts(parts: object) -> list[Json]:
    """Return parts of reasoning, of which other servers send one as a bare text."""
    sent = parts if isinstance(parts, list) else [parts] if parts else []
    return [part if isinstance(part, dict) else {"type": "reasoning_text", "text": str(part)} for part in sent]


def _own_thoughts(item: Json) -> Json:
    """Return the text of thoughts that came as the `encrypted_content` of this server's; nothing for another's."""
    try:
        text = read_summary(str(item.get("encrypted_content") or ""))
    except BadRequest:
        return {}
    return {"content": [{"type": "reasoning_text", "text": text}]}


def _is_known(item: Json) -> bool:
    """Return whether the item can be read: it is valid, and if it is a summary, it is this server's."""
    if not fits(ITEM, item):
        return False
    try:
        return item.get("type") != "compaction" or bool(read_summary(item["encrypted_content"]))
    except BadRequest:
        return False


def _message(item: Json, text: str) -> Json:
    """Return the message that stands for an item. Whoever said it, a model must not take it for words of its own."""
    role = item.get("role") if item.get("role") in {"system", "developer"} else "user"
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
