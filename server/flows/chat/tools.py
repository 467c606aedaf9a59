"""Checks of function tools and JSON schemas for all protocols, which raise BadRequest, and the arguments of calls."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from pipelines.protocol.chat import JsonFormat
from server.errors import BadRequest

BRANCHES = ("properties", "$defs", "definitions", "patternProperties")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
SINGLES = ("items", "not")
MAX_DEPTH = 64


def find_strict_violation(schema: Mapping[str, Any]) -> str | None:
    """Return OpenAI's error message for the first rule that the schema violates; None for a valid schema."""
    if schema.get("type") != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {schema.get('type')!r}'."
    return next(_violations(schema, ()), None)


def _violations(schema: object, path: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    if len(path) > MAX_DEPTH:
        yield f"In context={path[:3]}..., the schema is nested more than {MAX_DEPTH} levels deep."
        return
    if schema.get("type") == "object" or "properties" in schema:
        yield from _object_violations(schema, path)
    for key in BRANCHES:
        for name, inner in _entries(schema.get(key)):
            yield from _violations(inner, (*path, key, name))
    for key in LISTS:
        branches = schema.get(key)
        for number, inner in enumerate(branches if isinstance(branches, list) else ()):
            yield from _violations(inner, (*path, key, str(number)))
    for key in SINGLES:
        yield from _violations(schema.get(key), (*path, key))


def _object_violations(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"In context={path}, 'additionalProperties' is required to be supplied and to be false."
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    if missing := [name for name, _ in _entries(schema.get("properties")) if name not in required]:
        yield (
            f"In context={path}, 'required' is required to be supplied and to be an array including every key in "
            f"properties. Missing '{missing[0]}'."
        )


def _entries(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


Schema = Mapping[str, Any]
NO_PARAMETERS: Final[Schema] = {"type": "object", "properties": {}}


def function_tool(
    name: str, description: str | None, parameters: Schema | None, *, strict: bool | None, param: str
) -> dict[str, Any]:
    """Return the tool in the format of chat templates. `param` is the path of its schema in the request."""
    violation = find_strict_violation(parameters) if strict and parameters else None
    kind = (parameters or NO_PARAMETERS).get("type", "object")
    if parameters and isinstance(kind, list) and "object" in kind:
        parameters, kind = {**parameters, "type": "object"}, "object"
    if kind != "object":
        violation = f"it must be of type 'object', not {kind!r}."
    if violation:
        message = f"Invalid schema for function '{name}': {violation}"
        raise BadRequest(message, param=param, code="invalid_function_parameters")
    optional = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **optional, "parameters": parameters or NO_PARAMETERS}}


def normalise_tools(values: Mapping[str, Any], shaped: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the body with its tools and its tool choice in the shape of its own protocol: clients also send those of
    other protocols."""
    made, tools, choice = dict(values), values.get("tools"), values.get("tool_choice")
    if isinstance(tools, list):
        made["tools"] = [shaped(tool) for tool in tools]
    choice = _own_choice(choice)
    if choice is not None:
        made["tool_choice"] = shaped(choice)
    return made


def _own_choice(choice: object) -> object:
    """Return the choice of tools in OpenAI's words, which other protocols have as an object with a type."""
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind in {"auto", "none", "required", "any"}:
        return "required" if kind == "any" else kind
    if isinstance(choice, Mapping) and kind == "tool":
        return {"type": "function", "name": choice.get("name")}
    return choice


def json_format(name: str, schema: Schema | None, *, strict: bool | None, field: str, param: str) -> JsonFormat:
    """Return the format of answers that match this schema; without a schema, of any JSON object."""
    if strict and (violation := find_strict_violation(schema or {})):
        message = f"Invalid schema for {field} '{name}': {violation}"
        raise BadRequest(message, param=param, code="invalid_json_schema")
    return JsonFormat(schema)


def check_unique_names(names: Sequence[str], paths: Sequence[str]) -> None:
    """Refuse a name that comes twice. `paths` are where the request has them. Raises BadRequest."""
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"Invalid 'tools': the name '{name}' is used twice; tool names must be unique."
            raise BadRequest(message, param=paths[index])


def require_tools(names: Sequence[str]) -> None:
    """Check that a required tool call has tools to choose from. Raises BadRequest."""
    if not names:
        message = "'tool_choice': 'required' needs 'tools': send some, or leave it out."
        raise BadRequest(message, param="tool_choice")


def require_known_tool(name: str, names: Sequence[str]) -> str:
    """Return the name of the chosen tool. Raises BadRequest if no tool has it."""
    if name not in names:
        message = f"Invalid 'tool_choice': '{name}' is not among the tools: {', '.join(names) or 'there are none'}."
        raise BadRequest(message, param="tool_choice")
    return name


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call. Text that ran out of tokens, or that a weak model spoiled, is returned as it is,
    by the name INVALID_JSON."""
    try:
        value = from_json(text or "{}")
        json.dumps(value, allow_nan=False)  # what JSON can't say, such as 1e400, would spoil the whole answer
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}
