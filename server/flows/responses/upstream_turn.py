"""A turn of a chat model that another server runs: asked as a chat completion, heard as the events of a local one."""

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
from server.backends.upstream import RETRY_S, Answer
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded
from server.flows.chat.strict_schema import strict_fault
from server.flows.chat.upstream import stream_upstream
from server.flows.responses.plan import Plan, Turn
from server.schemas.response_object import Json
from server.schemas.upstream_chunks import CallPiece, ChoicePiece, Chunk, Logprob, TopLogprob, Usage
from server.services import Services

REASONS: dict[str, FinishReason] = {"length": "length", "tool_calls": "tool_calls"}


async def run_elsewhere(
    services: Services, plan: Plan, turn: Turn, upstream: Upstream
) -> AsyncGenerator[ChatEvent, None]:
    """From `Admitted`, once the other server begins to answer, to `ChatFinished`. Raises ApiError, also on the way."""
    began = time.monotonic()
    usage, reason, admitted = ChatUsage(0, 0), "", False
    async with aclosing(stream_upstream(services, upstream, to_body(plan, turn), plan.tally)) as items:
        async for item in items:
            if isinstance(item, Answer):
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
    yield ChoiceFinished(0, REASONS.get(reason, "stop"))
    yield ChatFinished(usage, time.monotonic() - began)


def to_body(plan: Plan, turn: Turn) -> Json:
    """The chat completion that asks for this turn. Fields that say nothing are left out: not every server knows all."""
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


def _format(plan: Plan) -> Json | None:
    if plan.format is None:
        return None
    schema = plan.format.schema
    if schema is None:
        return {"type": "json_object"}
    strict = strict_fault(schema) is None  # one that is not strict would be refused as such
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def _refusal(upstream: Upstream, answer: Answer) -> ApiError:
    """What came instead of a stream."""
    error = answer.body.get("error")
    told: dict[str, Any] = error if isinstance(error, dict) else {}
    message, param, code = (told.get(name) for name in ("message", "param", "code"))
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


def _deltas(choice: ChoicePiece) -> Iterator[ChatEvent]:
    delta = choice.delta
    if thought := delta.reasoning_content or delta.reasoning:
        yield ReasoningDelta(0, thought)
    if delta.content:
        tokens = choice.logprobs.content if choice.logprobs else None
        yield TextDelta(0, delta.content, tuple(_token(token) for token in tokens or ()))
    for piece in delta.tool_calls or ():
        yield _call(piece)


def _call(piece: CallPiece) -> ToolCallDelta:
    """A call begins with its name; a server that gives it no id leaves that to us."""
    name = piece.function.name or None
    call_id = (piece.id or f"call_{uuid.uuid4().hex}") if name else None
    return ToolCallDelta(0, piece.index, piece.function.arguments or "", call_id, name)


def _token(token: Logprob) -> TokenLogprob:
    return TokenLogprob(token.token, _data(token), token.logprob, tuple(_top(top) for top in token.top_logprobs))


def _top(token: TopLogprob) -> TopToken:
    return TopToken(token.token, _data(token), token.logprob)


def _data(token: TopLogprob) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _usage(told: Usage) -> ChatUsage:
    details = told.completion_tokens_details
    return ChatUsage(told.prompt_tokens, told.completion_tokens, (details.reasoning_tokens or 0) if details else 0)
