"""A chat's stream from another server, as the events of a local model."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError

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
from pipelines.protocol.upstream import Upstream
from server.backends.upstream import RETRY_S, Json, UpstreamResponse
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded
from server.flows.chat.run import UsageContext
from server.flows.chat.upstream import UpstreamChat
from server.schemas.upstream_chunks import ChoiceChunk, Chunk, Logprob, ToolCallChunk, TopLogprob, Usage

REASONS: dict[str, FinishReason] = {"length": "length", "tool_calls": "tool_calls"}


async def upstream_events(
    chat: UpstreamChat, upstream: Upstream, body: Json, usage_context: UsageContext
) -> AsyncGenerator[ChatEvent, None]:
    """From `Admitted`, at the first chunk, to `ChatFinished`. Raises ApiError, also between events."""
    began = time.monotonic()
    usage, admitted = ChatUsage(0, 0), False
    finished: dict[int, ChoiceFinished] = {0: ChoiceFinished(0, "stop")}
    async with aclosing(chat.stream(upstream, body, usage_context)) as items:
        async for item in items:
            if isinstance(item, UpstreamResponse):
                raise upstream_refusal(upstream, item)
            if not admitted:
                admitted = True
                yield Admitted(0)
            chunk = _read(upstream, item)
            for choice in chunk.choices:
                for event in _deltas(choice):
                    yield event
                if choice.finish_reason:
                    finished[choice.index] = _finished(choice)
            usage = _usage(chunk.usage) if chunk.usage else usage
    if not admitted:
        yield Admitted(0)  # an empty stream is an answer, too
    for end in finished.values():
        yield end
    yield ChatFinished(usage, time.monotonic() - began)


def _finished(choice: ChoiceChunk) -> ChoiceFinished:
    stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
    return ChoiceFinished(choice.index, REASONS.get(choice.finish_reason or "", "stop"), stop)


def upstream_refusal(upstream: Upstream, answer: UpstreamResponse) -> ApiError:
    """The error for an answer that is no success, or no stream where one was asked for."""
    error = answer.body.get("error")
    details: Mapping[str, Any] = error if isinstance(error, dict) else {}
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
        yield ReasoningDelta(choice.index, reasoning)
    if delta.content:
        tokens = choice.logprobs.content if choice.logprobs else None
        yield TextDelta(choice.index, delta.content, tuple(_token(token) for token in tokens or ()))
    for piece in delta.tool_calls or ():
        yield _tool_call_delta(choice.index, piece)


def _tool_call_delta(choice: int, piece: ToolCallChunk) -> ToolCallDelta:
    """The first piece of a call has its name. Some servers send no id: then one is generated."""
    name = piece.function.name or None
    call_id = (piece.id or f"call_{uuid.uuid4().hex}") if name else None
    return ToolCallDelta(choice, piece.index, piece.function.arguments or "", call_id, name)


def _token(token: Logprob) -> TokenLogprob:
    return TokenLogprob(token.token, _data(token), token.logprob, tuple(_top(top) for top in token.top_logprobs))


def _top(token: TopLogprob) -> TopToken:
    return TopToken(token.token, _data(token), token.logprob)


def _data(token: TopLogprob) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _usage(sent: Usage) -> ChatUsage:
    details = sent.completion_tokens_details
    return ChatUsage(sent.prompt_tokens, sent.completion_tokens, (details.reasoning_tokens or 0) if details else 0)
