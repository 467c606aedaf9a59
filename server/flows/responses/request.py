"""From the JSON of a request to the body of a response, with what is left out of it."""

from collections.abc import Mapping
from typing import Any, get_args

from server.flows.chat.tools import normalise_tools
from server.flows.responses.readable import readable_input
from server.schemas.extra_fields import refuse_unsupported, unknown_keys
from server.schemas.response_tools import leave_out_hosted_tools
from server.schemas.responses import UNSUPPORTED, CompactBody, Include, ResponseBody
from server.schemas.validation import validate

Json = dict[str, Any]
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
