"""A turn of an upstream chat model: sent as a chat completion, received as the events of a local model."""

from collections.abc import AsyncGenerator

from pipelines.protocol.chat import ChatEvent
from pipelines.protocol.upstream import Upstream
from server.flows.chat.strict_schema import find_strict_violation
from server.flows.chat.upstream import UpstreamChat
from server.flows.chat.upstream_events import upstream_events
from server.flows.responses.plan import ResponsePlan, Turn
from server.schemas.response_object import Json


def run_upstream_turn(
    chat: UpstreamChat, plan: ResponsePlan, turn: Turn, upstream: Upstream
) -> AsyncGenerator[ChatEvent, None]:
    """The turn's events. Raises ApiError, also between events."""
    return upstream_events(chat, upstream, to_body(plan, turn), plan.usage_context)


def to_body(plan: ResponsePlan, turn: Turn) -> Json:
    """The chat completion that asks for this turn. Unset fields are left out: not every server knows all of them."""
    tools = [
        tool
        for tool in plan.tools.functions
        if not turn.allowed_tools or tool["function"]["name"] in turn.allowed_tools
    ]
    body: Json = {
        "messages": list(turn.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": plan.sampling.temperature,
        "top_p": plan.sampling.top_p,
        "presence_penalty": plan.sampling.presence_penalty or None,
        "frequency_penalty": plan.sampling.frequency_penalty or None,
        "max_tokens": turn.max_tokens,
        "tools": tools or None,
        "tool_choice": turn.tool_choice if tools else None,
        "parallel_tool_calls": False if tools and not plan.parallel_tool_calls else None,
        "response_format": _format(plan),
        "logprobs": plan.logprobs or None,
        "top_logprobs": plan.top_logprobs or None,
        "top_k": plan.sampling.top_k or None,
        "min_p": plan.sampling.min_p or None,
        "repetition_penalty": None if plan.sampling.repetition_penalty == 1.0 else plan.sampling.repetition_penalty,
        **_template_fields(plan),
    }
    return {name: value for name, value in body.items() if value is not None}


def _template_fields(plan: ResponsePlan) -> Json:
    """OpenAI's fields as they are; what was sent as a template option, as such."""
    options = dict(plan.template_options)
    known = {name: options.pop(name, None) for name in ("reasoning_effort", "verbosity")}
    if known["reasoning_effort"] is not None:
        options.pop("enable_thinking", None)  # it says the same
    return {**known, "chat_template_kwargs": options or None}


def _format(plan: ResponsePlan) -> Json | None:
    if plan.format is None:
        return None
    schema = plan.format.schema
    if schema is None:
        return {"type": "json_object"}
    strict = find_strict_violation(schema) is None  # the upstream refuses `strict` with any other schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}
