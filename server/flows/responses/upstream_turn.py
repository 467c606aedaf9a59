"""A turn of an upstream chat model: sent as a chat completion, received as the events of a local model."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError

from pipelines.catalog.chat import Upstream
from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)
from server.backends.upstream import RETRY_S, UpstreamResponse
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded
from server.flows.chat.strict_schema import find_strict_violation
from server.flows.chat.upstream import UpstreamChat
from server.flows.responses.plan import ResponsePlan, Turn
from server.schemas.response_object import Json
from server.schemas.upstream_chunks import ChoiceChunk, Chunk, Logprob, ToolCallChunk, TopLogprob, Usage

REASONS: dict[str, FinishReason] = {"length": "length", "tool_calls": "tool_calls"}


async def run_upstream_turn(
    chat: UpstreamChat, plan: ResponsePlan, turn: Turn, upstream: Upstream
) -> AsyncGenerator[ChatEvent, None]:
    """From `Admitted`, at the first chunk, to `ChatFinished`. Raises ApiError, also between events."""
    began = time.monotonic()
    usage, reason, admitted = ChatUsage(0, 0), "", False
    async with aclosing(chat.stream(upstream, to_body(plan, turn), plan.usage_context)) as items:
        async for item in items:
            if isinstance(item, UpstreamResponse):
                raise _refusal(upstream, item)
            if not admitted:
                admitted = True
                yield Admitted(0)
            chunk = _read(upstream, item)
            for choice in chunk.choices[:1]:
                for event in _deltas(choice):
                    yield event
                reason = choice.finish_reason or reason
            usage = _usage(chunk.usage) if chunk.usage else usage
    if not admitted:
        yield Admitted(0)  # an empty stream is an answer, too
    yield ChoiceFinished(0, REASONS.get(reason, "stop"))
    yield ChatFinished(usage, time.monotonic() - began)


def to_body(plan: ResponsePlan, turn: Turn) -> Json:
    """The chat completion that asks for this turn. Unset fields are left out: not every server knows all of them."""
    tools = [tool for tool in plan.tools if not turn.allowed_tools or tool["function"]["name"] in turn.allowed_tools]
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
    }
    return {name: value for name, value in body.items() if value is not None}


def _format(plan: ResponsePlan) -> Json | None:
    if plan.format is None:
        return None
    schema = plan.format.schema
    if schema is None:
        return {"type": "json_object"}
    strict = find_strict_violation(schema) is None  # the upstream refuses `strict` with any other schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def _refusal(upstream: Upstream, answer: UpstreamResponse) -> ApiError:
    """The error for an answer that is not a stream."""
    error = answer.body.get("error")
    details: dict[str, Any] = error if isinstance(error, dict) else {}
    message, param, code = (details.get(name) for name in ("message", "param", "code"))
    text = message if isinstance(message, str) else f"The server behind model `{upstream.model}` sent no stream."
    if 400 <= answer.status < 500 and answer.status != 429:
        field, kind = (value if isinstance(value, str) else None for value in (param, code))
        return BadRequest(text, param=field, code=kind)
    if answer.status in {429, 503}:
        return Overloaded(text, RETRY_S)
    return EngineFailure(text, code="upstream_failed")


def _read(upstream: Upstream, item: Json) -> Chunk:
    try:
        return Chunk.model_validate(item)
    except ValidationError as error:
        message = f"The server behind model `{upstream.model}` sent a chunk that can't be read."
        raise EngineFailure(message, code="upstream_failed") from error


def _deltas(choice: ChoiceChunk) -> Iterator[ChatEvent]:
    delta = choice.delta
    if reasoning := delta.reasoning_content or delta.reasoning:
        yield ReasoningDelta(0, reasoning)
    if delta.content:
        tokens = choice.logprobs.content if choice.logprobs else None
        yield TextDelta(0, delta.content, tuple(_token(token) for token in tokens or ()))
    for piece in delta.tool_calls or ():
        yield _tool_call_delta(piece)


def _tool_call_delta(piece: ToolCallChunk) -> ToolCallDelta:
    """The first piece of a call has its name. Some servers send no id: then one is generated."""
    name = piece.function.name or None
    call_id = (piece.id or f"call_{uuid.uuid4().hex}") if name else None
    return ToolCallDelta(0, piece.index, piece.function.arguments or "", call_id, name)


def _token(token: Logprob) -> TokenLogprob:
    return TokenLogprob(token.token, _data(token), token.logprob, tuple(_top(top) for top in token.top_logprobs))


def _top(token: TopLogprob) -> TopToken:
    return TopToken(token.token, _data(token), token.logprob)


def _data(token: TopLogprob) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _usage(sent: Usage) -> ChatUsage:
    details = sent.completion_tokens_details
    return ChatUsage(sent.prompt_tokens, sent.completion_tokens, (details.reasoning_tokens or 0) if details else 0)
