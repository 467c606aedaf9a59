"""From the JSON of a request to the body of a response, with what is left out of it."""

from collections.abc import Mapping
from typing import Any

from server.flows.chat.tools import in_shape
from server.flows.responses.readable import readable_input
from server.schemas.hosted_fields import refuse_unsupported
from server.schemas.response_tools import leave_out_hosted_tools
from server.schemas.responses import UNSUPPORTED, CompactBody, ResponseBody
from server.schemas.validation import validate

Json = dict[str, Any]


def read_response(values: Json) -> tuple[ResponseBody, list[str]]:
    """Return the body, and the paths of what can't be read or run here. Raises BadRequest for the first invalid
    field."""
    refuse_unsupported(values, UNSUPPORTED)
    known, tools = leave_out_hosted_tools(in_shape(values, _flat))
    items, left_out = readable_input(values.get("input"))
    return validate(ResponseBody, {**known, "input": items}, strict=True), [*tools, *left_out]


def read_compaction(values: Json) -> tuple[CompactBody, list[str]]:
    """Return the body of a compaction likewise. Raises BadRequest."""
    items, left_out = readable_input(values.get("input"))
    return validate(CompactBody, {**values, "input": items}, strict=True), left_out


def _flat(tool: Any) -> Any:
    """Return the tool with what a chat has below `function` beside its type."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return tool
    inner = tool.get("function")
    if not isinstance(inner, Mapping) or "name" in tool:
        return {"type": "function", **tool}
    return {**{name: value for name, value in tool.items() if name != "function"}, **inner, "type": "function"}
