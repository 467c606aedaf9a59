"""Money and files are never left halfway."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.stdlib.get_logger("darkroom.flows")
Result = TypeVar("Result")


async def finish_even_if_cancelled(work: Coroutine[Any, Any, Result]) -> Result:
    """Wait for the work, then let the cancellation through."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        raise


class LooseEnds:
    """What is to be written down after the request that it belongs to has gone. `tie_up` before the books close."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it by and by."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def tie_up(self) -> None:
        """Until all of it is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("something was left undone", exc_info=error)
