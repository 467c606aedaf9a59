"""Tasks that belong to the server, not to a request, and whether it still takes new ones."""

import asyncio
import math
from collections.abc import Coroutine
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
