"""The engine inside a worker: jobs in order of arrival, one at a time, on a thread of its own.

Events reach the event loop by `call_soon_threadsafe`. A cancelled or late job ends at its next denoising step.
"""

import asyncio
import contextlib
import gc
import time
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from pipelines.checkpoints import Checkpoint, CheckpointError, UnsupportedTask, load_checkpoint
from pipelines.diffusion import MAX_SEED, Drawing
from pipelines.encode import encode
from pipelines.types import (
    CheckpointSpec,
    EncodedImage,
    Event,
    Failed,
    Finished,
    ImageJob,
    Progress,
    Queued,
    Runtime,
    Started,
)

WeightsKey = tuple[Path, Path | None, Runtime]


class Cancelled(Exception):
    """The job was cancelled while it ran."""


class OutOfTime(Exception):
    """The job ran past its time limit."""


@dataclass(slots=True)
class _Task:
    """A job on its way through the engine."""

    job: ImageJob
    emit: Callable[[Event], None]
    cancelled: bool = False
    running: Future[None] | None = None  # on the device thread
    step: int = 0
    deadline: float = 0.0  # by time.monotonic


class ImageEngine:
    """Implements `pipelines.types.Engine`. Build it and use it on one event loop."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._loop = asyncio.get_running_loop()
        self._device_thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._encoders = ThreadPoolExecutor(2, thread_name_prefix="encode")
        self._tasks: dict[str, _Task] = {}
        self._loaded: dict[WeightsKey, Checkpoint] = {}

    async def submit(self, job: ImageJob) -> AsyncIterator[Event]:
        """Take the job and say what becomes of it."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        task = _Task(job, lambda event: self._emit(events, event))
        yield Queued(ahead=len(self._tasks))
        self._tasks[job.id] = task
        task.running = self._device_thread.submit(self._run, task)
        try:
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            self._cancel(task)  # for when the caller has left before the end
            del self._tasks[job.id]

    def cancel(self, job_id: str) -> None:
        """Stop the job within one step, or before it starts."""
        if task := self._tasks.get(job_id):
            self._cancel(task)

    async def load(self, spec: CheckpointSpec) -> None:
        """Have the weights ready before the first job. Raises CheckpointError."""
        await self._loop.run_in_executor(self._device_thread, self._checkpoint, spec)

    def _cancel(self, task: _Task) -> None:
        task.cancelled = True
        if task.running is not None and task.running.cancel():  # it still waited: it need not wait to end
            task.emit(_failure(Cancelled(), task.job))

    def _emit(self, events: asyncio.Queue[Event], event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(events.put_nowait, event)

    def _run(self, task: _Task) -> None:
        """On the device thread: everything from the job to its last event."""
        try:
            self._draw(task)
        except Exception as error:
            failure = _failure(error, task.job)
        else:
            return
        if failure.code == "out_of_memory":  # only here: the exception held every tensor of the frames it passed
            self._free_memory()
        task.emit(failure)

    def _draw(self, task: _Task) -> None:
        job = task.job
        if task.cancelled:
            raise Cancelled
        checkpoint = self._checkpoint(job.checkpoint)  # before the clock starts: a large one takes minutes to load
        began = time.monotonic()
        task.deadline = began + job.time_limit_s
        task.emit(Started())
        drawing = Drawing(checkpoint, job, lambda: self._after_step(task, total))
        total = drawing.steps
        files = []
        for index in range(job.n):
            pixels = drawing.draw(index)
            seed = (job.seed + index) % MAX_SEED
            files.append(self._encoders.submit(encode, pixels, job.encoding, job.metadata, seed))
        self._encoders.submit(self._finish, task, began, [file.result for file in files])

    def _finish(self, task: _Task, began: float, results: list[Callable[[], EncodedImage]]) -> None:
        """Off the device thread, so that the next job starts while this one's files are written."""
        try:
            task.emit(Finished(tuple(result() for result in results), time.monotonic() - began))
        except Exception as error:
            task.emit(_failure(error, task.job))

    def _after_step(self, task: _Task, total: int) -> None:
        task.step += 1
        if task.cancelled:
            raise Cancelled
        if time.monotonic() > task.deadline:
            raise OutOfTime
        task.emit(Progress(min(task.step, total), total))  # some pipelines round their steps up

    def _checkpoint(self, spec: CheckpointSpec) -> Checkpoint:
        """Weights are shared by every spec that names the same files; the sampling is the spec's own."""
        key = (spec.path, spec.config, spec.runtime)
        if key not in self._loaded:
            self._loaded[key] = load_checkpoint(spec, self.device)
        shared = self._loaded[key]
        return Checkpoint(spec, shared.kind, shared.components, shared.config, shared.device)

    def _free_memory(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _failure(error: Exception, job: ImageJob) -> Failed:
    """What the caller is told, and what the log is."""
    detail = "".join(traceback.format_exception(error))
    match error:
        case Cancelled():
            return Failed("cancelled", "The job was cancelled; nothing was charged.")
        case OutOfTime():
            limit = f"{job.time_limit_s:g} s"
            return Failed("timed_out", f"The job ran past its time limit of {limit}; nothing was charged.")
        case UnsupportedTask():
            return Failed("unsupported", f"This model's checkpoint can't do that: {error}.", detail)
        case CheckpointError():
            message = f"The checkpoint '{job.checkpoint.name}' can't be used; the server's log says why."
            return Failed("checkpoint_failed", f"{message} Nothing was charged.", detail)
        case torch.OutOfMemoryError() | MemoryError():
            message = "The device ran out of memory; nothing was charged. Try a smaller size or fewer references."
            return Failed("out_of_memory", message, detail)
    return Failed("engine_failed", "The picture could not be drawn; nothing was charged.", detail)
