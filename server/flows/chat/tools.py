"""Functions and schemas that a model is offered, checked alike however a route spells them. All raise BadRequest."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipelines.protocol.chat import JsonFormat
from server.errors import BadRequest
from server.flows.chat.strict_schema import strict_fault

Schema = Mapping[str, Any]
NO_PARAMETERS: Final[Schema] = {"type": "object", "properties": {}}


def function_tool(
    name: str, description: str | None, parameters: Schema | None, *, strict: bool | None, param: str
) -> dict[str, Any]:
    """A function as chat templates have it. `param` is where its schema stands in the request."""
    fault = strict_fault(parameters) if strict and parameters else None
    kind = (parameters or NO_PARAMETERS).get("type", "object")
    if kind != "object":
        fault = f"it must be of type 'object', not {kind!r}."
    if fault:
        message = f"Invalid schema for function '{name}': {fault}"
        raise BadRequest(message, param=param, code="invalid_function_parameters")
    told = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **told, "parameters": parameters or NO_PARAMETERS}}


def json_format(name: str, schema: Schema | None, *, strict: bool | None, field: str, param: str) -> JsonFormat:
    """Answers of this schema, or any object where there is none."""
    if strict and (fault := strict_fault(schema or {})):
        message = f"Invalid schema for {field} '{name}': {fault}"
        raise BadRequest(message, param=param, code="invalid_json_schema")
    return JsonFormat(schema)


def check_names(names: Sequence[str], param: str) -> None:
    """No two tools of one name. `param` has the place of a tool's index."""
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"Invalid 'tools': the name '{name}' is there twice; give each its own."
            raise BadRequest(message, param=param.format(index))


def check_any(names: Sequence[str]) -> None:
    """There must be one that can be required."""
    if not names:
        message = "'tool_choice' of 'required' needs 'tools': send some, or leave it out."
        raise BadRequest(message, param="tool_choice")


def known_tool(name: str, names: Sequence[str]) -> str:
    """The name of a tool that was sent."""
    if name not in names:
        message = f"Invalid 'tool_choice': '{name}' is not among the tools: {', '.join(names) or 'there are none'}."
        raise BadRequest(message, param="tool_choice")
    return name
