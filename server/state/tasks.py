"""Tasks that belong to the server, not to a request, and whether it still takes new ones."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, TypeVar

import structlog

from server.errors import ServerStopping


class Drain:
    """Open until the server is told to stop; then running calls go on and new ones are refused."""

    def __init__(self) -> None:
        self.draining = False

    def check_open(self) -> None:
        """Check that the server takes new calls. Raises ServerStopping while draining."""
        if self.draining:
            raise ServerStopping("The server is about to stop and takes no new calls. Try again in a moment.", 5)


log = structlog.stdlib.get_logger("darkroom.flows")
Result = TypeVar("Result")

SETTLE_S = 1.0  # much more than a write lasts, much less than a client should wait for one that does not concern it


async def run_to_completion(work: Coroutine[Any, Any, Result]) -> Result:
    """Await the work to its end even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        raise


class BackgroundTasks:
    """Records that are written after their request has gone. `join` before the database closes."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the work without waiting for it; a failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def settle(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run the work and wait for it, but not for long: while the database is busy it goes on in the background. A
        failure is logged. It goes on, too, if the caller is cancelled."""
        await asyncio.wait({self.spawn(work)}, timeout=SETTLE_S)

    async def join(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("background task failed", exc_info=error)


FOREVER = math.inf


class CancelReason(Enum):
    """Why a task was cancelled."""

    ABANDONED = auto()  # no client is attached, and the grace period is over
    REQUESTED = auto()  # by its key, which cancels or deletes it
    BY_OPERATOR = auto()
    SHUTDOWN = auto()  # the server stops


class DetachedTask(ABC):
    """Without a listener the task runs on for `grace_s` seconds, then it is cancelled. Everything on one event loop."""

    def __init__(self, grace_s: float) -> None:
        self.cancel_reason: CancelReason | None = None
        self._grace_s = grace_s
        self._task: asyncio.Task[Any] | None = None
        self._listeners = 0
        self.was_followed = False  # a client has been attached
        self.in_background = False  # its client was told to come back for the result
        self.answered = False  # its answer, or the word to come back for it, has arrived whole at a client
        self._when_left: list[Callable[[], object]] = []
        self._grace_timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def done(self) -> bool:
        """Return whether nothing more will happen."""

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel` was called. Images that were stored and charged before remain."""
        return self.cancel_reason is not None

    @property
    def has_listeners(self) -> bool:
        """Return whether a client is attached."""
        return self._listeners > 0

    @property
    def has_lost_client(self) -> bool:
        """Return whether the clients that were attached have left without the whole answer."""
        return self.was_followed and not self.has_listeners and not self.answered

    def when_left(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever the last client has left."""
        self._when_left.append(callback)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Attach a client while this is entered."""
        self._listeners += 1
        self.was_followed = True
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                for callback in tuple(self._when_left):
                    callback()
                if not self.done:
                    self._start_grace()

    def detach(self) -> None:
        """Let the task go on without listeners from now on, until its end."""
        self.in_background = True
        self._grace_s = FOREVER

    def cancel(self, reason: CancelReason = CancelReason.REQUESTED) -> None:
        """Cancel the task at its next await."""
        self.cancel_reason = reason
        if self._task is not None and not self.done:
            self._task.cancel()

    def _start_grace(self) -> None:
        if self._grace_s <= 0:
            self.cancel(CancelReason.ABANDONED)
        elif self._grace_s < FOREVER:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self._grace_s, self.cancel, CancelReason.ABANDONED)
