"""A request as the body of a chat completion, for another server. Pure."""

from typing import Any

from server.flows.chat.request import ChatRequest
from server.flows.chat.tools import find_strict_violation
from server.schemas.extra_fields import SAMPLED

Json = dict[str, Any]


def to_body(request: ChatRequest) -> Json:
    """Return the body. What the caller did not send is left out: the other server has defaults of its own, and may not
    know the field."""
    tools = [
        tool for tool in request.tools if not request.allowed_tools or tool["function"]["name"] in request.allowed_tools
    ]
    sampling = request.sampling
    body: Json = {
        "messages": list(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: getattr(sampling, name) for name in sorted(SAMPLED - sampling.unset)},
        "max_tokens": request.max_tokens,
        "tools": tools or None,
        "tool_choice": request.tool_choice if tools and request.tool_choice != "auto" else None,
        "parallel_tool_calls": False if tools and not request.parallel_tool_calls else None,
        "response_format": _format(request),
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        **_template_fields(request),
    }
    return {name: value for name, value in body.items() if value is not None}


def _template_fields(request: ChatRequest) -> Json:
    """Return OpenAI's fields as they are, and template options as such."""
    options = dict(request.template_options)
    known = {name: options.pop(name, None) for name in ("reasoning_effort", "verbosity")}
    if known["reasoning_effort"] is not None:
        options.pop("enable_thinking", None)  # it says the same
    return {**known, "chat_template_kwargs": options or None}


def _format(request: ChatRequest) -> Json | None:
    if request.format is None:
        return None
    schema = request.format.schema
    if schema is None:
        return {"type": "json_object"}
    strict = find_strict_violation(schema) is None  # the upstream refuses `strict` with any other schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}
