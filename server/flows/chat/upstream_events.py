"""From the chunks of another server's stream to the events of a local model. Pure."""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from pipelines.protocol.chat import (
    ChatEvent,
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
from server.backends.upstream import UpstreamResponse, refused_key
from server.backends.upstream_errors import KEY, UpstreamError
from server.errors import ApiError, BadRequest, ContextExceeded, EngineFailure, UpstreamRefused
from server.schemas.chat_completion import ChoiceChunk, Chunk, Logprob, ToolCallChunk, TopLogprob, Usage
from server.state.active_chats import Sent

REASONS: dict[str, FinishReason] = {"length": "length", "tool_calls": "tool_calls"}


def finish(choice: ChoiceChunk) -> ChoiceFinished:
    """Return the event for the end of the chunk's choice."""
    stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
    return ChoiceFinished(choice.index, REASONS.get(choice.finish_reason or "", "stop"), stop)


def upstream_refusal(upstream: Upstream, answer: UpstreamResponse) -> ApiError:
    """Return the error for an answer that is no success, with its status; or for one that is no stream where one was
    asked for."""
    if answer.error is None:
        message = f"The server behind model `{upstream.model}` sent no stream."
        return EngineFailure(message, code="upstream_failed")
    return to_api_error(upstream, answer.error, answer.headers)


def to_api_error(upstream: Upstream, error: UpstreamError, headers: Mapping[str, str]) -> ApiError:
    """Return an upstream's error as the caller gets it."""
    if error.code == KEY.code:
        return refused_key(upstream)
    if error.exceeds_context:
        return ContextExceeded(error.message, tokens=error.tokens, context=error.context, param=error.param)
    if error.status == 400:
        return BadRequest(error.message, param=error.param, code=error.code)
    return UpstreamRefused(error.status, error.body()["error"], headers)


def read_chunk(upstream: Upstream, item: Sent) -> Chunk:
    """Return the validated chunk. Raises EngineFailure for one of another shape."""
    try:
        return Chunk.model_validate(item)
    except ValidationError as error:
        message = f"The server behind model `{upstream.model}` sent a chunk that can't be read."
        raise EngineFailure(message, code="upstream_failed") from error


def deltas(choice: ChoiceChunk) -> Iterator[ChatEvent]:
    """Yield the deltas that the chunk adds to the choice."""
    delta = choice.delta
    if reasoning := delta.reasoning_content or delta.reasoning:
        yield ReasoningDelta(choice.index, reasoning)
    if text := delta.content or delta.refusal:
        tokens = choice.logprobs.content if choice.logprobs else None
        yield TextDelta(choice.index, text, tuple(_token(token) for token in tokens or ()))
    for piece in delta.tool_calls or ():
        yield _tool_call_delta(choice.index, piece)


def _tool_call_delta(choice: int, piece: ToolCallChunk) -> ToolCallDelta:
    """Return the event of a piece. The first piece of a call has its name and its id."""
    name = piece.function.name or None
    return ToolCallDelta(choice, piece.index, piece.function.arguments or "", piece.id if name else None, name)


def _token(token: Logprob) -> TokenLogprob:
    top = tuple(TopToken(each.token, _data(each), each.logprob) for each in token.top_logprobs)
    return TokenLogprob(token.token, _data(token), token.logprob, top)


def _data(token: TopLogprob) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def read_usage(sent: Usage) -> ChatUsage:
    """Return the upstream's counts of tokens as a `ChatUsage`."""
    prompt, completion = sent.prompt_tokens_details, sent.completion_tokens_details
    reasoning = (completion.reasoning_tokens or 0) if completion else 0
    return ChatUsage(
        sent.prompt_tokens, sent.completion_tokens, reasoning, (prompt.cached_tokens or 0) if prompt else 0
    )
