"""Tools in the form in which a chat template shows them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.chat.prompts.content import Message
from pipelines.chat.prompts.template_traits import ToolTraits
from pipelines.chat.syntax.schemas import (
    COMBINED,
    NULLABLE,
    Schema,
    map_subschemas,
    property_schemas,
    resolve_reference,
)

Tool = Mapping[str, Any]
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
    0 for what is there, 1 for the tool itself, 2 for its arguments too, 3 with one type for each."""
    function = dict(tool["function"])
    if isinstance(function.get("parameters"), Mapping):
        function["parameters"] = map_subschemas(_with_properties(function["parameters"]), _without_nulls)
    if not level:
        return {**tool, "function": function}
    function = {"description": "", **function}
    parameters = {"type": "object", "properties": {}, "required": [], **(function.get("parameters") or {})}
    parameters = map_subschemas(parameters, _of_one_type) if level > 2 else parameters
    return {**tool, "function": {**function, "parameters": _complete_schema(parameters) if level > 1 else parameters}}


def _with_properties(schema: Schema) -> Schema:
    """Return the schema with the properties that it has by reference or in a union: many templates show no others."""
    if schema.get("properties") or not schema.keys() & COMBINED:
        return dict(schema)
    return {**resolve_reference(schema, schema), "properties": property_schemas(schema)}


def _without_nulls(schema: Schema) -> Schema:
    """Return the schema without nulls and booleans in the place of something else, which templates stumble over."""
    plain = {name: value for name, value in schema.items() if value is not None or name in NULLABLE}
    if isinstance(plain.get("items"), bool):
        del plain["items"]
    if "properties" in plain:
        properties = plain["properties"] if isinstance(plain["properties"], Mapping) else {}
        plain["properties"] = {name: part if isinstance(part, Mapping) else {} for name, part in properties.items()}
    return plain


def _of_one_type(schema: Schema) -> Schema:
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    return {**schema, "type": next((kind for kind in kinds if kind != "null"), "null")}


def _complete_schema(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    whole = {"description": "", **({} if schema.keys() & KINDS else {"type": "string"}), **schema}
    if isinstance(whole.get("properties"), Mapping) or whole.get("type") == "object":
        inner = whole.get("properties") or {}
        whole["properties"] = {name: _complete_schema(part) for name, part in inner.items()}
    if "items" in whole:
        whole["items"] = _complete_schema(whole["items"])
    return whole


def _as_text(tools: Sequence[Tool]) -> str:
    return json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
