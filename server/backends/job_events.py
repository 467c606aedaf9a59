"""The course of a job, event by event."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from pipelines.protocol.chat import ChatEvent, ChatFinished, Counted
from pipelines.protocol.classify import Classified, ClassifyEvent
from pipelines.protocol.images import Event, Failed, Finished, Started

TERMINAL_EVENTS = (Finished, ChatFinished, Counted, Classified, Failed)
EventT = TypeVar("EventT", Event, ChatEvent, ClassifyEvent)


class JobEvents(AsyncIterator[EventT], Generic[EventT]):
    """A job's events up to its last. Unlike a generator's, its iteration can go on after a cancelled `anext`."""

    def __init__(self, events: asyncio.Queue[EventT]) -> None:
        self._events: asyncio.Queue[EventT] = events
        self._submitted_at = time.monotonic()
        self.queue_s: float | None = None  # until it started on the device; a chat's prompt is built before
        self.ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventT:
        if self.ended:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Started):
            self.queue_s = time.monotonic() - self._submitted_at
        self.ended = isinstance(event, TERMINAL_EVENTS)
        return event
