"""The engine inside a chat worker: jobs come in, deltas go out.

A job's prompt is prepared on one thread and its tokens are computed on another (`device_loop`); everything that is said
about it passes through the event loop.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from pipelines.chat.checkpoint import ChatCheckpoint, load_chat
from pipelines.chat.device_loop import DeviceLoop
from pipelines.chat.failures import failure_of
from pipelines.chat.request_builder import count, prepare
from pipelines.chat.sequence import Request
from pipelines.device.failures import Cancelled
from pipelines.device.memory import Budgets
from pipelines.device.openmp import compute
from pipelines.protocol.chat import Admitted, ChatEvent, ChatFinished, ChatJob, ChatSpec, Counted, CountJob, Spent
from pipelines.protocol.images import Failed, Queued

LAST = (ChatFinished, Counted, Failed)


@dataclass(slots=True, eq=False)
class Task:
    """A job on its way through the engine."""

    job: ChatJob | CountJob
    events: asyncio.Queue[ChatEvent]
    request: Request | None = None  # once it is admitted
    over: bool = False


class ChatEngine:
    """Build it and use it on one event loop."""

    def __init__(self, device: torch.device, cache_bytes: int | None = None) -> None:
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._preparer = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._tasks: dict[str, Task] = {}
        self._said: deque[tuple[Task, ChatEvent]] = deque()  # by threads that compute, and not yet told
        self._telling = False  # the event loop has been asked to tell it
        self._checkpoints: dict[ChatSpec, asyncio.Task[ChatCheckpoint]] = {}
        budget = cache_bytes if cache_bytes is not None else Budgets.of(device).device_bytes // 2
        self._device_loop = DeviceLoop(device, budget)

    async def submit(self, job: ChatJob | CountJob) -> AsyncIterator[ChatEvent]:
        """Take the job and say what becomes of it."""
        task = self._tasks[job.id] = Task(job, asyncio.Queue())
        yield Queued()
        admission = asyncio.create_task(self._admit(task))
        try:
            while True:
                event = await task.events.get()
                yield event
                if isinstance(event, LAST):
                    return
        finally:
            self._abandon(task)  # for when the caller has left before the end
            admission.cancel()
            del self._tasks[job.id]
            if job.checkpoint not in self._checkpoints:  # the catalog has dropped it
                self._loop.call_soon(self._device_loop.tidy)

    def cancel(self, job_id: str) -> None:
        """Stop a chat within one step. A count goes on to its end: where none comes, the server has to see that."""
        if (task := self._tasks.get(job_id)) and isinstance(task.job, ChatJob):
            self._fail(task, Cancelled())

    async def load(self, spec: ChatSpec) -> ChatCheckpoint:
        """Have the weights ready before the first job. Raises CheckpointError."""
        if spec not in self._checkpoints:
            loading = self._loop.run_in_executor(self._loader, compute, load_chat, spec, self._device)
            self._checkpoints[spec] = asyncio.create_task(_result(loading))
        try:
            return await asyncio.shield(self._checkpoints[spec])
        except Exception:
            self._checkpoints.pop(spec, None)  # the next job may find the folder mended
            raise

    async def warm(self, spec: ChatSpec) -> None:
        """Load it before it is asked for. Raises CheckpointError."""
        await self.load(spec)

    def keep(self, specs: Iterable[ChatSpec]) -> None:
        """The catalog names these now. Others leave as soon as no chat needs them."""
        kept = frozenset(specs)
        self._checkpoints = {spec: loading for spec, loading in self._checkpoints.items() if spec in kept}
        self._device_loop.keep(kept)

    async def _admit(self, task: Task) -> None:
        """From the messages to a place in the line."""
        job = task.job
        try:
            checkpoint = await self.load(job.checkpoint)
            emit = self._poster(task)
            if isinstance(job, CountJob):
                tokens = await self._loop.run_in_executor(self._preparer, count, checkpoint, job, emit)
                self._emit(task, Counted(tokens))
                return
            sequences, dropped = await self._loop.run_in_executor(self._preparer, prepare, checkpoint, job, emit)
        except Exception as error:
            self._fail(task, error)
            return
        task.request = sequences[0].request
        if task.over:
            return
        self._emit(task, Admitted(len(task.request.prompt), dropped))
        self._device_loop.add(sequences)

    def _poster(self, task: Task) -> Callable[[ChatEvent], None]:
        """How the device's thread says something about a job. The event loop is woken once for all that a step says."""

        def say(event: ChatEvent) -> None:
            self._said.append((task, event))
            if not self._telling:
                self._telling = True
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
                    self._loop.call_soon_threadsafe(self._tell)

        return say

    def _tell(self) -> None:
        self._telling = False  # before the look: what is said from now on asks again
        while self._said:
            self._emit(*self._said.popleft())

    def _emit(self, task: Task, event: ChatEvent) -> None:
        if not task.over:
            task.over = isinstance(event, LAST)
            if isinstance(event, Failed) and task.request and task.request.started_at is not None:
                task.events.put_nowait(Spent(task.request.usage))
            task.events.put_nowait(event)

    def _fail(self, task: Task, error: BaseException) -> None:
        failed = failure_of(error, task.job)
        self._emit(task, failed)
        self._abandon(task)

    def _abandon(self, task: Task) -> None:
        task.over = True
        if task.request is not None:
            task.request.over = True  # the device's thread drops it before its next step


async def _result(loading: asyncio.Future[ChatCheckpoint]) -> ChatCheckpoint:
    return await loading
