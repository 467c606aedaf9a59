"""Chats that run: as retries join them, as operators and their keys see them, and how each is ended by its id.

A chat with an Idempotency-Key is a task of the server, and has the id of its job. Any other ends with its connection,
and has the id of its request, which its answer has in the header `x-request-id`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from pipelines.protocol.tiers import ServiceTier
from server.accounts.calls import CallId
from server.errors import ApiError, Cancelled, EngineFailure, ServerStopping
from server.state.active_job import ActiveJob, ActiveJobs
from server.state.tasks import FOREVER
from server.telemetry.call_trace import current_trace

log = structlog.stdlib.get_logger("darkroom.chat")

ENDPOINT = "chat.completions"
Sent = Mapping[str, Any]  # what a client gets of a chat: a chunk, an event, or the whole answer
Item = TypeVar("Item")


class ActiveChat(ActiveJob[Sent]):
    """One chat. Its events, if it has an Idempotency-Key, are the parts of its answer: the chunks of a stream, or one
    completion.

    It holds a slot of its key's while it runs, so it does not count a second time.
    """

    counts_towards_limit = False

    def __init__(self, call: CallId, *, replayed: bool = False) -> None:
        super().__init__(call, FOREVER, replayed=replayed)
        self.model = ""
        self.tier: ServiceTier = "default"
        self.tokens = 0  # the pieces that were sent, each of one token or more
        self.stopped = self._by_operator = False
        self._admitted = self._ended = False
        self._running: AsyncGenerator[object, None] | None = None
        self._waiting: asyncio.Timeout | None = None  # for the next item
        self._closed = asyncio.Event()

    @classmethod
    def replay(cls, call: CallId, outcome: Sequence[Sent] | ApiError) -> "ActiveChat":
        """Return a chat that ended before, to be followed like one that runs."""
        chat = cls(call, replayed=True)
        if not isinstance(outcome, ApiError):
            chat.events.extend(outcome)
        chat.end(outcome if isinstance(outcome, ApiError) else None)
        return chat

    @property
    def done(self) -> bool:
        """Return whether nothing more will come."""
        return self._ended

    @property
    def admitted(self) -> bool:
        """Return whether the model, or its server, has taken it: its answer begins with status 200."""
        return self._admitted

    async def run(self, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
        """Yield the items, until their end. Raises Cancelled after `cancel_and_wait`."""
        self._running = items
        try:
            while not self.stopped:
                async with asyncio.timeout(None) as self._waiting:
                    item = await anext(items, None)
                self._waiting = None
                if item is None:
                    break
                yield item
        except TimeoutError:
            if not self.stopped:  # it is the chat's own
                raise
        finally:
            self._closed.set()
        if self.stopped:
            if self._by_operator:
                raise Cancelled("An operator cancelled the chat.", code="cancelled_by_operator")
            raise Cancelled("The chat was cancelled.")

    def count(self, *, admitted: bool, tokens: int) -> None:
        """Record that an item of `run` is about to be sent: whether it admits the chat, and how many tokens it has."""
        self.tokens += tokens
        if admitted and not self._admitted:
            self._admitted = True
            self._notify()

    async def cancel_and_wait(self, *, by_operator: bool = False) -> None:
        """End the events that `run` yields, and wait until the chat has ended. The tokens that it used are counted."""
        self.stopped, self._by_operator = True, by_operator
        if self._waiting is not None:
            self._waiting.reschedule(0)
            await self._closed.wait()
        elif self._running is not None:  # its client reads slowly: the model stops at once
            await self._running.aclose()

    def send(self, item: Sent) -> None:
        """Append a chunk, or the completion."""
        self.events.append(item)
        self._notify()

    def end(self, failure: ApiError | None) -> None:
        """Record that nothing more comes. A failure is raised to all who follow."""
        self.failure, self._ended = failure, True
        self._notify()

    async def items(self) -> AsyncIterator[Sent]:
        """Yield everything that is sent, from the first item on. Raises ApiError, also between them."""
        async for item in self.follow():
            yield item
        if self.failure is not None:
            raise self.failure

    def to_api_error(self, error: BaseException) -> ApiError:
        """Return the client's error for any exception that ended the chat."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, asyncio.CancelledError):
            return ServerStopping("The chat was stopped before its end. Please send it again.", 2)
        log.error("chat failed", chat=self.call.id, exc_info=error)
        return EngineFailure(f"Something went wrong on the server (chat {self.call.id}).")

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        if not self.done:  # cancelled before its first step
            self.end(self.to_api_error(asyncio.CancelledError()))


class ActiveChats(ActiveJobs[ActiveChat]):
    """Registry of chats. The jobs are those with an Idempotency-Key; every chat is listed while it has its slot."""

    def __init__(self) -> None:
        super().__init__()
        self._listed: dict[str, ActiveChat] = {}

    def running(self) -> tuple[ActiveChat, ...]:
        """Return the listed chats of every key, without those that were stopped."""
        return tuple(chat for chat in self._listed.values() if not chat.stopped)

    @contextmanager
    def track_chat(self, key_id: str, model: str, endpoint: str, tier: ServiceTier) -> Iterator[ActiveChat]:
        """List this request's chat while this is entered. Its trace has the failure, which an answer that has begun
        can't tell."""
        trace = current_trace()
        call_id = trace.job or trace.request_id
        chat = self.find(call_id, key_id) or ActiveChat(CallId(call_id, key_id, endpoint, "", None))
        chat.model, chat.tier = model, tier
        self._listed[call_id] = chat
        try:
            yield chat
        except ApiError as error:
            trace.status = error.status
            trace.fail(error.label, error.message, error.param)
            raise
        finally:
            del self._listed[call_id]
