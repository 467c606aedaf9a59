"""Chats that another server answers: the body is forwarded, the tokens are counted."""

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pipelines.protocol.chat import Admitted, ChatEvent, ChatFinished, ChatUsage, ChoiceFinished
from pipelines.protocol.upstream import Upstream
from server.backends.upstream import UpstreamResponse
from server.backends.upstream_errors import read_error
from server.catalog.chat import ChatModel
from server.errors import ApiError, EngineFailure
from server.flows.chat.completion import CompletionHead, CompletionWriter
from server.flows.chat.events import AnswerEvent, RawItem
from server.flows.chat.moderation import chat_moderation_context, upstream_texts
from server.flows.chat.request import ChatRequest, to_body
from server.flows.chat.run import UsageContext
from server.flows.chat.shown_images import with_tool_images_as_user
from server.flows.chat.source import Chat, ChatCall, ChatParts, ChatSource, Json
from server.flows.chat.upstream_events import deltas, finish, read_chunk, read_usage, to_api_error, upstream_refusal
from server.flows.chat.upstream_repair import StreamRepair, as_chunks, repaired_completion
from server.flows.chat.upstream_turns import with_plain_turns
from server.telemetry.call_trace import current_trace

CHEAP_TIERS = frozenset({"auto", "default", "flex"})
ANSWER_LIMITS = ("max_tokens", "max_completion_tokens")
NOT_SENT = ("thinking_token_budget",)  # agents always have one, and vLLM refuses it unless it is set up for it
MOST_TOKENS = 2**31  # of one answer: what claims more is not counted
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class UpstreamSource(ChatSource):
    """Answers the chats of a model on another server."""

    def __init__(self, parts: ChatParts, model: ChatModel, upstream: Upstream) -> None:
        self._parts = parts
        self._model = model
        self._upstream = upstream

    async def prepare(self, call: ChatCall) -> Chat:
        """Return the chat, without a check of the body: the other server may know more fields."""
        call = _within_rights(call)
        tier = call.key.tier(call.values.get("service_tier"))
        writer = CompletionWriter(CompletionHead.of_call(self._model.name, tier))
        if call.verbatim:
            return Chat(partial(self._stream_verbatim, call, writer.head.id), writer)
        ignored = [name for name in NOT_SENT if name in call.values]
        call = replace(call, values={name: value for name, value in call.values.items() if name not in ignored})
        return Chat(partial(self._moderated, call, writer.head.id), writer, tuple(ignored))

    def run(self, request: ChatRequest, usage: UsageContext) -> AsyncGenerator[ChatEvent, None]:
        """Send a checked request to the upstream, and yield the events of its answer."""
        body = to_body(request)
        if request.service_tier is not None and (tier := usage.key.tier(request.service_tier)) != "default":
            body["service_tier"] = tier
        return self._events(body, usage)

    async def count_tokens(self, call: ChatCall) -> int:
        """Return how many tokens the upstream reads, which an answer of one token says: not every server can count
        alone. Raises ApiError."""
        call = _within_rights(call)
        await self._check_input(call, f"chatcmpl-{uuid.uuid4().hex}")
        values = call.values if call.verbatim else _with_user_images(call.values)
        answer = await self.request({**values, "max_tokens": 1}, UsageContext(call.key, self._model.name))
        error = answer.error
        if error and error.exceeds_context and error.tokens is not None and not error.at_least:
            return error.tokens  # of a conversation that is too long, it says so too
        if answer.status != 200:
            raise upstream_refusal(self._upstream, answer)
        usage = answer.body.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if not isinstance(tokens, int):
            message = f"The server behind model `{self._model.name}` did not say how many tokens it read."
            raise EngineFailure(message, code="upstream_failed")
        return tokens

    async def request(self, values: Json, usage: UsageContext) -> UpstreamResponse:
        """Return the upstream's answer of any status. Raises ApiError if it has none."""
        outcome = "cut"
        current_trace().model = usage.model
        try:
            answer = await self._complete({**values, "model": self._upstream.model})
            outcome = "finished" if answer.status == 200 else str(answer.status)
        finally:
            self._parts.metrics.chats.labels(usage.model, outcome).inc()
        if answer.status != 200:
            return answer
        await self._record_usage(usage, answer.body.get("usage"))
        return replace(answer, body=repaired_completion(answer.body))

    async def stream(self, values: Json, usage: UsageContext) -> AsyncGenerator[UpstreamResponse | RawItem, None]:
        """Yield the chunks; or, as the only item, the answer that came in place of a stream. Raises ApiError.

        The upstream is always asked for the usage, so that it can be counted. It is removed from the chunks of a caller
        who did not ask for it.
        """
        sent = values.get("stream_options")
        options = {**sent, "include_usage": True} if isinstance(sent, dict) else {"include_usage": True}
        include_usage = isinstance(sent, dict) and bool(sent.get("include_usage"))
        body = {**values, "model": self._upstream.model, "stream_options": options}
        outcome, tokens, repair = "cut", None, StreamRepair()
        current_trace().model = usage.model
        try:
            async with self._open_stream(body) as answer:
                if isinstance(answer, UpstreamResponse) and not _is_completion(answer):
                    outcome = str(answer.status)
                    yield answer
                    return
                async for sent_chunk in _chunks_of(answer):
                    if sent_chunk.get("error"):
                        raise _stream_error(self._upstream, sent_chunk)
                    chunk = repair.chunk(sent_chunk)
                    tokens = chunk.get("usage") or tokens
                    if include_usage:
                        yield RawItem(chunk)
                    elif chunk.get("choices"):
                        yield RawItem({name: value for name, value in chunk.items() if name != "usage"})
                for chunk in repair.ends():
                    yield RawItem(chunk)
                outcome = "finished"
        finally:
            await self._record_usage(usage, tokens)
            self._parts.metrics.chats.labels(usage.model, outcome).inc()

    async def _complete(self, body: Json) -> UpstreamResponse:
        """Return the answer to a body, or to what its server refused in it told otherwise."""
        answer = await self._parts.upstreams.complete(self._upstream, body)
        for change in CHANGES:
            if changed := change(body, answer):
                body, answer = changed, _better(answer, await self._parts.upstreams.complete(self._upstream, changed))
        return answer

    @asynccontextmanager
    async def _open_stream(self, body: Json) -> AsyncIterator[UpstreamResponse | AsyncIterator[Json]]:
        """Open the answer to a body as `_complete` does."""
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self._parts.upstreams.stream(self._upstream, body))
            for change in CHANGES:
                if changed := change(body, answer):
                    opened = self._parts.upstreams.stream(self._upstream, changed)
                    body, answer = changed, _better(answer, await stack.enter_async_context(opened))
            yield answer

    async def _stream_verbatim(self, call: ChatCall, chat_id: str) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the upstream's chunks as they are."""
        await self._check_input(call, chat_id)
        usage = UsageContext(call.key, self._model.name)
        if not call.stream:
            yield await self.request(call.values, usage)
            return
        async with aclosing(self.stream(call.values, usage)) as items:
            async for item in items:
                yield item

    async def _moderated(self, call: ChatCall, chat_id: str) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the events of a local model, made of the upstream's chunks."""
        await self._check_input(call, chat_id)
        body = {**_with_user_images(call.values), **USAGE, **({"stop": list(call.stops)} if call.stops else {})}
        events = self._events(body, UsageContext(call.key, self._model.name))
        context = chat_moderation_context(chat_id, call.key, self._model)
        async with aclosing(self._parts.moderator.moderate_stream(context, events)) as moderated:
            async for event in moderated:
                yield event

    async def _events(self, body: Json, usage: UsageContext) -> AsyncGenerator[ChatEvent, None]:
        """Yield events from `Admitted`, at the first chunk, to `ChatFinished`."""
        began = time.monotonic()
        tokens, admitted = ChatUsage(0, 0), False
        finished: dict[int, ChoiceFinished] = {0: ChoiceFinished(0, "stop")}
        async with aclosing(self.stream(body, usage)) as items:
            async for item in items:
                if isinstance(item, UpstreamResponse):
                    raise upstream_refusal(self._upstream, item)
                if not admitted:
                    admitted = True
                    yield Admitted(0)
                chunk = read_chunk(self._upstream, item.body)
                for choice in chunk.choices:
                    for event in deltas(choice):
                        yield event
                    if choice.finish_reason:
                        finished[choice.index] = finish(choice)
                tokens = read_usage(chunk.usage) if chunk.usage else tokens
        for end in finished.values():
            yield end
        yield ChatFinished(tokens, time.monotonic() - began)

    async def _check_input(self, call: ChatCall, chat_id: str) -> None:
        """Moderate the texts of the body; images and verbatim answers are not moderated. Raises ModerationBlocked."""
        context = chat_moderation_context(chat_id, call.key, self._model)
        await self._parts.moderator.check_texts(context, "input", await upstream_texts(call.values))

    async def _record_usage(self, usage: UsageContext, tokens: Any) -> None:
        """Count the tokens of an answer. `tokens` is the upstream's usage object, not validated."""
        if isinstance(tokens, dict):
            counts = (tokens.get("prompt_tokens"), tokens.get("completion_tokens"))
            known = (n if type(n) is int and 0 <= n <= MOST_TOKENS else 0 for n in counts)
            await self._parts.runner.record_usage(usage, *known)


Answer = TypeVar("Answer", bound=UpstreamResponse | AsyncIterator[Json])


def _better(first: Answer, second: Answer) -> Answer:
    """Return the second answer, unless it is another error than the first: that one the caller has caused."""
    error = second.error if isinstance(second, UpstreamResponse) else None
    return first if error and not error.exceeds_context else second


def _within_rights(call: ChatCall) -> ChatCall:
    """Return the call without a service tier that costs more there and that its key has no right to."""
    asked = call.values.get("service_tier")
    if not isinstance(asked, str) or asked.lower() in CHEAP_TIERS or call.key.tier("priority") == "priority":
        return call
    return replace(call, values={name: value for name, value in call.values.items() if name != "service_tier"})


def _with_user_images(values: Json) -> Json:
    return {**values, "messages": list(with_tool_images_as_user(values["messages"]))}


def _is_completion(answer: UpstreamResponse) -> bool:
    """Return whether the whole answer came where a stream was asked for."""
    return answer.status == 200 and isinstance(answer.body.get("choices"), list) and bool(answer.body["choices"])


async def _chunks_of(answer: UpstreamResponse | AsyncIterator[Json]) -> AsyncIterator[Json]:
    if isinstance(answer, UpstreamResponse):
        for chunk in as_chunks(answer.body):
            yield chunk
        return
    async for chunk in answer:
        yield chunk


def _stream_error(upstream: Upstream, chunk: Json) -> ApiError:
    """Return the error that came as an event of a stream. Its code may be the status that an answer would have had."""
    error = read_error(chunk, None)
    if error.status == 500 and error.code is None:
        return EngineFailure(error.message, code="upstream_failed")
    return to_api_error(upstream, error, {})


def within_context(values: Json, answer: UpstreamResponse | AsyncIterator[Json]) -> Json | None:
    """Return the body with a limit of its answer that the context has room for, where its own was refused; None if it
    has none, or if the conversation alone is too long. Clients send the limit of the model that they know, and local
    models end an answer where the context ends, too."""
    error = answer.error if isinstance(answer, UpstreamResponse) else None
    named = next((name for name in ANSWER_LIMITS if isinstance(values.get(name), int)), None)
    if named is None or error is None or not error.exceeds_context:
        return None
    unlimited = {name: value for name, value in values.items() if name not in ANSWER_LIMITS}
    if error.tokens is None or error.context is None or error.at_least:
        return unlimited  # which other servers read as up to the end of the context
    room = error.context - error.tokens
    return {**unlimited, named: room} if 0 < room < values[named] else None


CHANGES = (with_plain_turns, within_context)  # of bodies that an upstream has refused, each tried once
