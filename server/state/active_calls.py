"""Calls that run. A call belongs to the server: requests listen to it, may leave it, and may come back to it.

When its last listener has left, a call goes on for as long as its patience lasts: not at all for most clients, some
seconds for one that retries a cut connection by itself, to its end for one with an Idempotency-Key.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from pipelines.protocol.images import Event, Preview, Progress, Started
from server.accounts.calls import CallId
from server.errors import ApiError, EngineFailure, Overloaded
from server.state.detached_task import Listened
from server.state.expected_retries import Same, ToldToRetry
from server.state.image_result import ImageResult, ImageShape

log = structlog.stdlib.get_logger("darkroom.calls")

RETRY_WINDOW_S = 15 * 60.0  # how long after its end a call without a key is still known to a retry


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call, and how long it goes on when nobody listens. A part of a response does not count by itself."""

    call: CallId
    patience_s: float
    is_part: bool = False


class RunningCall(Listened):
    """One call: its task, and what it has told so far. Everything on one event loop."""

    def __init__(self, ticket: Ticket, *, replayed: bool = False) -> None:
        super().__init__(ticket.patience_s)
        self.ticket = ticket
        self.replayed = replayed
        self.created_at = time.time()
        self.state: Literal["queued", "running"] = "queued"
        self.progress: Progress | None = None
        self.shape: ImageShape | None = None  # set when the call is admitted
        self.answer_begun = False  # some client has read a status of 200, and could not be told of a failure any more
        self._previews: list[Preview] = []
        self._news = asyncio.Event()
        self._outcome: asyncio.Future[ImageResult] = asyncio.get_running_loop().create_future()
        self._outcome.add_done_callback(lambda outcome: outcome.exception())  # it may be that nobody listens

    @property
    def over(self) -> bool:
        """Whether `result` answers at once."""
        return self._outcome.done()

    def begin(self, work: Coroutine[Any, Any, ImageResult]) -> asyncio.Task[ImageResult]:
        """Run the work in a task of the server's. However it ends, the listeners are told."""
        task = self._task = asyncio.create_task(work, name=self.ticket.call.id)
        task.add_done_callback(self._finish)
        return task

    def end(self, outcome: ImageResult | ApiError) -> None:
        """Nothing more will happen."""
        if isinstance(outcome, ApiError):
            self._outcome.set_exception(outcome)
        else:
            self._outcome.set_result(outcome)
        self._tell()

    def admit(self, shape: ImageShape) -> None:
        """The call is paid for and has its place in the queue: from here on it is a matter of time."""
        self.shape = shape
        self._tell()

    def report(self, event: Event) -> None:
        """Pass on what the engine says."""
        match event:
            case Started():
                self.state = "running"
            case Progress():
                self.progress = event
            case Preview():
                self._previews.append(event)
        self._tell()

    async def admission(self) -> ImageShape:
        """What will be drawn, once the call is admitted. Raises ApiError if it failed by now."""
        while self.shape is None and not self.over:
            await self._news.wait()
        if self.shape is None or self.over:
            return (await self.result()).shape
        return self.shape

    async def previews(self) -> AsyncIterator[Preview]:
        """Every preview from the first to the last, as soon as it is there."""
        told = 0
        while True:
            for preview in self._previews[told:]:
                told += 1
                yield preview
            if self.over:
                return
            if told == len(self._previews):
                await self._news.wait()

    async def result(self) -> ImageResult:
        """The end of the call. Raises ApiError. Whoever stops waiting here does not stop the call."""
        return await asyncio.shield(self._outcome)

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end, but not longer than this."""
        await asyncio.wait({self._outcome}, timeout=seconds)
        return self.over

    def _finish(self, task: asyncio.Task[ImageResult]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, ApiError):
            log.error("call failed", call=self.ticket.call.id, exc_info=error)
        self.end(task.result() if error is None else failure_of(error, self.ticket))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class RunningCalls:
    """All calls that have not ended, and what those that were turned away have been told."""

    def __init__(self) -> None:
        self._calls: dict[str, RunningCall] = {}
        self.told = ToldToRetry(RETRY_WINDOW_S)
        self.closed = False  # the server is about to stop: what runs goes on, nothing new starts

    def __len__(self) -> int:
        return len(self._calls)

    def ids(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(self._calls)

    def start(self, ticket: Ticket, work: Callable[[RunningCall], Coroutine[Any, Any, ImageResult]]) -> RunningCall:
        """A new call, which is found here until it has ended."""
        call = self._calls[ticket.call.id] = RunningCall(ticket)
        call.begin(work(call)).add_done_callback(lambda _: self._calls.pop(ticket.call.id))
        return call

    def check_open(self) -> None:
        """Raises Overloaded when the server is about to stop."""
        if self.closed:
            raise Overloaded("The server is about to stop and takes no new calls. Try again in a moment.", 5)

    def find(self, call_id: str, key_id: str) -> RunningCall | None:
        """The call with this id, if it is this key's."""
        call = self._calls.get(call_id)
        return call if call is not None and call.ticket.call.key_id == key_id else None

    def find_keyed(self, key_id: str, endpoint: str, idempotency_key: str) -> RunningCall | None:
        """The call that an Idempotency-Key names."""
        wanted = (key_id, endpoint, idempotency_key)
        return next((c for c in self._open() if _named(c) == wanted), None)

    def find_alike(self, same: Same) -> RunningCall | None:
        """The call that a retry is about: of equal ones that nobody listens to, else of all equal ones, the newest."""
        alike = [call for call in self._open() if call.ticket.call.same == same]
        return max(alike, key=lambda call: (not call.heard, call.created_at), default=None)

    def of_key(self, key_id: str) -> int:
        """How many calls a key has running, parts of something larger left out."""
        tickets = (call.ticket for call in self._calls.values())
        return sum(ticket.call.key_id == key_id and not ticket.is_part for ticket in tickets)

    def _open(self) -> Iterator[RunningCall]:
        return (call for call in self._calls.values() if not call.abandoned)

    async def stop(self) -> None:
        """End every call, uncharged unless its pictures are stored, and wait until the books say so."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        for call in calls:
            with suppress(ApiError):
                await call.result()


def failure_of(error: BaseException, ticket: Ticket) -> ApiError:
    """What the caller is told of any way in which a call can break off."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return Overloaded("The call was stopped before its end; nothing was charged. Please send it again.", 2)
    return EngineFailure(f"Something went wrong on the server (call {ticket.call.id}); nothing was charged.")


def _named(call: RunningCall) -> tuple[str, str, str | None]:
    return call.ticket.call.key_id, call.ticket.call.endpoint, call.ticket.call.idempotency_key
