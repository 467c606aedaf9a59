"""Chats of every model, here or on another server, within the limits of their keys."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from pipelines.protocol.chat import ChatSpec, ReasoningDelta, TextDelta, ToolCallDelta
from pipelines.protocol.tiers import ServiceTier
from server.backends.upstream import UpstreamResponse
from server.catalog.chat import ChatModel
from server.flows.chat.events import AnswerEvent, RawItem
from server.flows.chat.local_source import LocalSource
from server.flows.chat.source import Chat, ChatCall, ChatParts, ChatSource
from server.flows.chat.upstream_source import UpstreamSource
from server.flows.rate_limits import RateLimiter
from server.state.active_chats import ActiveChats
from server.state.tasks import Drain


class Chats:
    """Runs chats. One for the whole server."""

    def __init__(self, parts: ChatParts, limiter: RateLimiter, active: ActiveChats, drain: Drain) -> None:
        self._parts = parts
        self._limiter = limiter
        self._active = active
        self._drain = drain

    def source(self, model: ChatModel) -> ChatSource:
        """Return the source that answers the chats of this model."""
        if isinstance(model.source, ChatSpec):
            return LocalSource(self._parts, model, model.source)
        return UpstreamSource(self._parts, model, model.source)

    async def prepare(self, call: ChatCall) -> Chat:
        """Read and check the request. Its events have a slot of the key's, and are listed, until the last of them.
        Raises BadRequest."""
        chat = await self.source(call.model).prepare(call)
        return replace(chat, events=partial(self._run, call, chat.writer.head.tier, chat.events))

    async def count_tokens(self, call: ChatCall) -> int:
        """Return how many tokens the model reads for this call. Raises ApiError."""
        self._drain.check_open()
        async with self._limiter.slot(call.key):
            return await self.source(call.model).count_tokens(call)

    async def _run(
        self, call: ChatCall, tier: ServiceTier, open_events: Callable[[], AsyncGenerator[AnswerEvent, None]]
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the events. Raises RateLimited and Overloaded before the first, and Cancelled."""
        self._drain.check_open()
        async with aclosing(open_events()) as events, self._limiter.slot(call.key):
            with self._active.track_chat(call.key.id, call.model.name, call.endpoint, tier) as chat:
                async with aclosing(chat.run(events)) as running:
                    async for event in running:
                        admitted = not isinstance(event, UpstreamResponse) or event.status == 200
                        chat.count(admitted=admitted, tokens=_has_token(event))
                        yield event


def _has_token(event: AnswerEvent) -> bool:
    """Return whether the event has a token of the answer, or more."""
    if isinstance(event, RawItem):
        return bool(event.body.get("choices"))
    return isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta)
