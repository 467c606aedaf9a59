"""Runs batches: the server sends each line to itself, as the batch's key would send it.

Nothing but its answer is recorded of a line. If the server dies, the line is sent again with the same Idempotency-Key:
a call that was charged is replayed, and one that was not runs anew. So each line is charged once, whenever the server
is killed.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from server.accounts.batches import Batch, BatchLine, BatchStore, EndState
from server.state.tasks import Drain

log = structlog.stdlib.get_logger("darkroom.batches")

AT_ONCE = 4  # lines of one batch: images share forward passes, and others still come between
PAGE = 50  # lines that are read at once
LOOK_EVERY_S = 2.0  # for batches of servers that died, and those that other servers were told of
ATTEMPTS = 3  # of a line whose call fails by the server's fault
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FINAL_CODES = {"insufficient_quota"}  # of a 429
AGAIN_CODES = {"server_died", "idempotency_key_in_use", "server_stopping"}


@dataclass(frozen=True, slots=True)
class BatchLineAnswer:
    """The answer to a call that the server has sent to itself."""

    status: int
    request_id: str | None
    retry_after_s: float | None
    body: str


SendOwn = Callable[[Batch, BatchLine], Awaitable[BatchLineAnswer]]


class BatchRunner:
    """Runs the batches of this server, and those of servers that died."""

    def __init__(self, store: BatchStore, drain: Drain) -> None:
        self._store = store
        self._drain = drain
        self._changed = asyncio.Event()

    def poll(self) -> None:
        """Look for new batches at once."""
        self._changed.set()

    async def run(self, send: SendOwn) -> None:
        """Run batches until cancelled."""
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for name in [name for name, task in running.items() if task.done()]:
                    _log_failure(name, running.pop(name))
                await self._begin(running, send)
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):  # wait_for loses a cancellation that comes with a poll
                        await self._changed.wait()
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _begin(self, running: dict[str, asyncio.Task[None]], send: SendOwn) -> None:
        """Begin the batches that this server does not run yet. A database that is away is tried again later."""
        try:
            if self._drain.draining or not await self._store.in_reader(self._store.any_to_claim):
                return
            batches = await self._store.retry_in_writer(self._store.claim)
        except Exception:
            log.exception("batches could not be looked for")
            return
        for batch in batches:
            if batch.id not in running:
                running[batch.id] = asyncio.create_task(_BatchRun(self._store, self._drain, batch, send).run())


class _BatchRun:
    """One batch, whose lines are taken by several tasks in their order."""

    def __init__(self, store: BatchStore, drain: Drain, batch: Batch, send: SendOwn) -> None:
        self._store = store
        self._drain = drain
        self._batch = batch
        self._send = send
        self._read: deque[BatchLine] = deque()
        self._last = -1
        self._taking = asyncio.Lock()
        self._ends: EndState | None = None

    async def run(self) -> None:
        """Send all lines, and end the batch; unless the server stops, whose successor goes on."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._work())
        if not self._drain.draining or self._ends is not None:
            await self._store.retry_in_writer(self._store.end, self._batch.id, self._ends or "completed")
            log.info("batch ended", batch=self._batch.id, state=self._ends or "completed")

    async def _work(self) -> None:
        while (line := await self._take()) is not None:
            if (answer := await self._answer(line)) is not None:
                done = replace(line, status=answer.status, request_id=answer.request_id, answer=answer.body)
                await self._store.retry_in_writer(self._store.record, self._batch.id, done)

    async def _take(self) -> BatchLine | None:
        """Return the next line, None if none may begin any more."""
        async with self._taking:
            if await self._must_end():
                return None
            if not self._read:
                page = await self._store.in_reader(self._store.pending, self._batch.id, self._last, PAGE)
                self._read.extend(page)
            if not self._read:
                return None
            line = self._read.popleft()
            self._last = line.position
            return line

    async def _must_end(self) -> bool:
        if self._ends is None:
            self._ends = await self._store.in_reader(self._store.end_due, self._batch.id)
        return self._ends is not None or self._drain.draining

    async def _answer(self, line: BatchLine) -> BatchLineAnswer | None:
        """Send the line until it has an answer that stands. None if the batch or the server ends before."""
        failures, pause_s = 0, PAUSE_S
        while True:
            answer = await self._send(self._batch, line)
            waits, failed = _comes_again(answer)
            failures += failed
            if not waits and (not failed or failures == ATTEMPTS):
                return answer
            if await self._must_end():
                return None
            await asyncio.sleep(min(max(answer.retry_after_s or 0.0, pause_s), LONGEST_PAUSE_S))
            pause_s *= 2


def _comes_again(answer: BatchLineAnswer) -> tuple[bool, bool]:
    """Return whether the call was not taken now, and whether it failed by the server's fault."""
    if answer.status < 400:
        return False, False
    try:
        code = json.loads(answer.body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = None
    busy = answer.status == 503 or (answer.status == 429 and code not in FINAL_CODES) or code in AGAIN_CODES
    return busy, answer.status >= 500 and not busy


def _log_failure(name: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a batch has failed; it is begun again", batch=name, exc_info=error)
