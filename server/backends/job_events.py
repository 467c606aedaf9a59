"""The course of a job, event by event."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from pipelines.protocol.chat import ChatEvent, ChatFinished, CountFinished
from pipelines.protocol.classify import Classified, ClassifyEvent
from pipelines.protocol.images import Event, Failed, Finished, Started

TERMINAL_EVENTS = (Finished, ChatFinished, CountFinished, Classified, Failed)
WAKE_MARGIN = 5.0  # by which a worker may wake more slowly than is estimated
EventT = TypeVar("EventT", Event, ChatEvent, ClassifyEvent)


class JobEvents(AsyncIterator[EventT], Generic[EventT]):
    """A job's events up to its last. Unlike a generator's, its iteration can go on after a cancelled `anext`."""

    def __init__(self, events: asyncio.Queue[EventT], wake_s: float = 0.0) -> None:
        self._events: asyncio.Queue[EventT] = events
        self.wake_s = wake_s  # estimated, of a worker that had to be woken for it
        self._submitted_at = time.monotonic()
        self.queue_s: float | None = None  # until it started on the device; a chat's prompt is built before
        self.ended = False

    def limit_s(self, time_limit_s: float) -> float:
        """Return how long to wait for the job's end, in seconds from its submission: its time limit, and the time that
        the worker may need to wake."""
        return time_limit_s + WAKE_MARGIN * self.wake_s

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
