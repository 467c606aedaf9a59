"""Tools in the form in which a chat template shows them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.chat.template_traits import ToolTraits

Tool = Mapping[str, Any]
Message = dict[str, Any]
KINDS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf"})  # any of them says what a value is


def tool_variables(place: ToolTraits, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the variables of the template that show these tools."""
    if place.form == "variable":
        return {place.name: [complete(tool, place.complete) for tool in tools]}
    return {place.name: _as_text(tools)} if place.form == "text" else {}


def with_system_tools(messages: list[Message], place: ToolTraits, tools: Sequence[Tool]) -> list[Message]:
    """Return the messages; for a template that reads tools from the system message, with the tools in it."""
    if place.form != "system":
        return messages
    has_system = bool(messages) and messages[0]["role"] == "system"
    first, rest = (messages[0], messages[1:]) if has_system else ({"role": "system", "content": ""}, messages)
    return [{**first, place.name: _as_text(tools)}, *rest]


def complete(tool: Tool, level: int) -> dict[str, Any]:
    """Return a tool in which everything has a description, if an empty one, and every object its properties. `level`:
    0 for what is there, 1 for the tool itself, 2 for its arguments too."""
    if not level:
        return dict(tool)
    function = {"description": "", **tool["function"]}
    parameters = {"type": "object", "properties": {}, "required": [], **(function.get("parameters") or {})}
    return {**tool, "function": {**function, "parameters": _complete(parameters) if level > 1 else parameters}}


def _complete(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    whole = {"description": "", **({} if schema.keys() & KINDS else {"type": "string"}), **schema}
    if isinstance(whole.get("properties"), Mapping) or whole.get("type") == "object":
        inner = whole.get("properties") or {}
        whole["properties"] = {name: _complete(part) for name, part in inner.items()}
    if "items" in whole:
        whole["items"] = _complete(whole["items"])
    return whole


def _as_text(tools: Sequence[Tool]) -> str:
    return json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
