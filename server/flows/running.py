"""Calls that run. A call belongs to the server: requests listen to it, may leave it, and may come back to it.

When its last listener has left, a call goes on for as long as its patience lasts: not at all for most clients, some
seconds for one that retries a cut connection by itself, to its end for one with an Idempotency-Key.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from pipelines.types import Event, Preview, Progress, Started
from server.errors import ApiError, EngineFailure, Overloaded
from server.flows.outcome import ImageResult, ImageShape

log = structlog.stdlib.get_logger("darkroom.calls")

FOREVER = math.inf


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who called what. `patience_s` is how long the call goes on when nobody listens."""

    call_id: str
    key_id: str
    endpoint: str
    patience_s: float


class RunningCall:
    """One call: its task, and what it has told so far. Everything on one event loop."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.created_at = time.time()
        self.state: Literal["queued", "running"] = "queued"
        self.progress: Progress | None = None
        self.shape: ImageShape | None = None  # set when the call is admitted
        self.abandoned = False
        self._previews: list[Preview] = []
        self._news = asyncio.Event()
        self._outcome: asyncio.Future[ImageResult] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._listeners = 0
        self._last_wait: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """Whether `result` answers at once."""
        return self._outcome.done()

    def begin(self, work: Coroutine[Any, Any, ImageResult]) -> asyncio.Task[None]:
        """Run the work in a task of the server's. However it ends, the listeners are told."""
        self._outcome.add_done_callback(lambda outcome: outcome.exception())  # it may be that nobody listens
        self._task = asyncio.create_task(self._run(work), name=self.ticket.call_id)
        return self._task

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

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this is entered, somebody waits for the call."""
        self._listeners += 1
        if self._last_wait is not None:
            self._last_wait.cancel()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and not self.ended:
                self._wait_for_another()

    async def admission(self) -> ImageShape:
        """What will be drawn, once the call is admitted. Raises ApiError if it failed by now."""
        while self.shape is None and not self.ended:
            await self._news.wait()
        if self.shape is None or self.ended:
            return (await self.result()).shape
        return self.shape

    async def previews(self) -> AsyncIterator[Preview]:
        """Every preview from the first to the last, as soon as it is there."""
        told = 0
        while True:
            for preview in self._previews[told:]:
                told += 1
                yield preview
            if self.ended:
                return
            if told == len(self._previews):
                await self._news.wait()

    async def result(self) -> ImageResult:
        """The end of the call. Raises ApiError. Whoever stops waiting here does not stop the call."""
        return await asyncio.shield(self._outcome)

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end, but not longer than this."""
        await asyncio.wait({self._outcome}, timeout=seconds)
        return self.ended

    def cancel(self) -> None:
        """End the call now. What is stored and charged by then stays so."""
        self.abandoned = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, work: Coroutine[Any, Any, ImageResult]) -> None:
        try:
            result = await work
        except asyncio.CancelledError:
            self._outcome.set_exception(Overloaded("The call was stopped before its end; nothing was charged.", 2))
        except ApiError as error:
            self._outcome.set_exception(error)
        except Exception:
            log.exception("call failed", call=self.ticket.call_id)
            message = f"Something went wrong on the server (call {self.ticket.call_id}); nothing was charged."
            self._outcome.set_exception(EngineFailure(message))
        else:
            self._outcome.set_result(result)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _wait_for_another(self) -> None:
        patience_s = self.ticket.patience_s
        if patience_s <= 0:
            self.cancel()
        elif patience_s < FOREVER:
            self._last_wait = asyncio.get_running_loop().call_later(patience_s, self.cancel)


class RunningCalls:
    """All calls that have not ended."""

    def __init__(self) -> None:
        self._calls: dict[str, RunningCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def start(self, ticket: Ticket, work: Callable[[RunningCall], Coroutine[Any, Any, ImageResult]]) -> RunningCall:
        """A new call, which is found here until it has ended."""
        call = self._calls[ticket.call_id] = RunningCall(ticket)
        call.begin(work(call)).add_done_callback(lambda _: self._calls.pop(ticket.call_id))
        return call

    def find(self, call_id: str) -> RunningCall | None:
        """The call with this id."""
        return self._calls.get(call_id)

    async def stop(self) -> None:
        """End every call, uncharged unless its pictures are stored, and wait until the books say so."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        for call in calls:
            with suppress(ApiError):
                await call.result()
