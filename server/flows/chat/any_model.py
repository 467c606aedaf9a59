"""A chat of any model, here or on another server, as one stream of events. For protocols that are not OpenAI's: their
bodies become a chat completion's, and what they answer is made of these events."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pipelines.protocol.chat import Admitted, ChatEvent, ChatSpec
from pipelines.protocol.upstream import Upstream
from server.accounts.keys import Key
from server.catalog.chat import ChatModel
from server.errors import ApiError, EngineFailure
from server.flows.chat.complete import ChatCompletions, new_completion_head, new_completion_id
from server.flows.chat.moderation import chat_moderation_context, check_upstream_chat
from server.flows.chat.parse import parse_chat
from server.flows.chat.picture import PicturedEvent
from server.flows.chat.request import ChatRequest
from server.flows.chat.run import UsageContext
from server.flows.chat.upstream import UpstreamChat
from server.flows.chat.upstream_events import upstream_events, upstream_refusal
from server.flows.moderation import Moderator
from server.flows.rate_limits import RateLimiter
from server.state.drain import Drain

Json = dict[str, Any]


class AnyModelChat:
    """Runs chats of local models and of upstreams. One for the whole server."""

    def __init__(
        self,
        completions: ChatCompletions,
        upstream_chat: UpstreamChat,
        moderator: Moderator,
        limiter: RateLimiter,
        drain: Drain,
    ) -> None:
        self._completions = completions
        self._upstream_chat = upstream_chat
        self._moderator = moderator
        self._limiter = limiter
        self._drain = drain

    async def events(
        self, key: Key, model: ChatModel, endpoint: str, values: Json, stops: tuple[str, ...] = ()
    ) -> AsyncGenerator[PicturedEvent, None]:
        """The chat's events, from its `Admitted` on, within the key's limits. `values` is the body of a chat
        completion without `stop`: of stop strings, other protocols take more. Raises ApiError, also between events."""
        self._drain.check_open()
        if isinstance(model.source, Upstream):
            body = {**values, "stream": True, "stream_options": {"include_usage": True}}
            body |= {"stop": list(stops)} if stops else {}
            events = self._upstream_events(key, model, model.source, body)
        else:
            request = replace(await asyncio.to_thread(parse_chat, values), stop=stops)
            events = self._local_events(key, model, model.source, request)
        async with aclosing(self._limiter.run_chat(key, model.name, endpoint, events)) as running:
            async for event in running:
                yield event

    async def _local_events(
        self, key: Key, model: ChatModel, spec: ChatSpec, request: ChatRequest
    ) -> AsyncGenerator[ChatEvent, None]:
        request, unseen = self._completions.leave_out_unseen(request, spec)
        head = new_completion_head(model.name, spec)
        async with aclosing(self._completions.stream(request, model, spec, head, key)) as events:
            async for event in events:
                if unseen and isinstance(event, Admitted):  # other protocols count messages otherwise: no path is told
                    yield replace(event, unused_options=(*event.unused_options, "messages"))
                else:
                    yield event

    async def _upstream_events(
        self, key: Key, model: ChatModel, upstream: Upstream, values: Json
    ) -> AsyncGenerator[ChatEvent, None]:
        await check_upstream_chat(self._moderator, key, model, values)
        usage = UsageContext(key, model.name)
        events = upstream_events(self._upstream_chat, upstream, values, usage)
        context = chat_moderation_context(new_completion_id(), key, model)
        async with aclosing(self._moderator.moderate_stream(context, events)) as moderated:
            async for event in moderated:
                yield event

    async def count_tokens(self, key: Key, model: ChatModel, values: Json) -> int:
        """How many tokens the model would read. Another server is asked for an answer of one token, since it says so
        there: not every server can count alone. Raises ApiError."""
        self._drain.check_open()
        async with self._limiter.slot(key):
            if not isinstance(model.source, Upstream):
                request = await asyncio.to_thread(parse_chat, values)
                request, _ = self._completions.leave_out_unseen(request, model.source)
                return await self._completions.count_tokens(request, model.source, key)
            await check_upstream_chat(self._moderator, key, model, values)
            body = {**values, "max_tokens": 1}
            answer = await self._upstream_chat.ask(model.source, body, UsageContext(key, model.name))
        if answer.status != 200:
            raise upstream_refusal(model.source, answer)
        usage = answer.body.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        if not isinstance(tokens, int):
            message = f"The server behind model `{model.name}` did not say how many tokens it read."
            raise EngineFailure(message, code="upstream_failed")
        return tokens


def rename_field(error: ApiError, names: Mapping[str, str]) -> None:
    """Let the error name the caller's own field: `names` has a chat completion's fields and what they were made of."""
    head = (error.param or "").partition("[")[0].partition(".")[0]
    error.param = names.get(head, error.param)
