"""The engine inside a chat worker: jobs come in, events go out.

Threads build the prompts (`preparation`), another one computes (`device_loop`); all events of a job pass through the
event loop.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from pipelines.chat.failures import to_failed_event
from pipelines.chat.loading.checkpoint import CacheShare, ChatCheckpoint, load_chat
from pipelines.chat.preparation import Preparation
from pipelines.chat.request_builder import build_sequences, count_prompt_tokens
from pipelines.chat.steps.device_loop import DeviceLoop
from pipelines.chat.steps.sequence import Request
from pipelines.checkpoints.memory.chat_files import loaded_bytes
from pipelines.device.failures import Cancelled, is_out_of_memory, watch_device
from pipelines.device.memory import available_bytes, chat_cache_bytes, free_memory, memory_taken, with_memory
from pipelines.device.openmp import run_and_release
from pipelines.device.staged_copy import move_modules
from pipelines.protocol.chat import (
    ChatCapabilities,
    ChatEvent,
    ChatFinished,
    ChatJob,
    ChatSpec,
    CountFinished,
    CountJob,
    PartialUsage,
)
from pipelines.protocol.images import Failed, Queued

HOST = torch.device("cpu")
TERMINAL_EVENTS = (ChatFinished, CountFinished, Failed)


@dataclass(slots=True, eq=False)
class Task:
    """A job on its way through the engine."""

    job: ChatJob | CountJob
    events: asyncio.Queue[ChatEvent]
    request: Request | None = None  # once it is admitted
    done: bool = False


class ChatEngine:
    """The engine of chats. Build it and use it on one event loop."""

    def __init__(self, device: torch.device, cache_bytes: int | None = None) -> None:
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._preparation = Preparation()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._tasks: dict[str, Task] = {}
        self._outbox: deque[tuple[Task, ChatEvent]] = deque()  # from threads to the event loop
        self._flush_scheduled = False
        self._checkpoints: dict[ChatSpec, asyncio.Future[ChatCheckpoint]] = {}
        self._on_host: dict[ChatSpec, ChatCheckpoint] = {}  # whose weights left the device
        self._cache_bytes = cache_bytes if cache_bytes is not None else chat_cache_bytes(device)
        self._cache_share = CacheShare(self._cache_bytes)  # of each checkpoint
        self._device_loop = DeviceLoop(device, self._cache_share)

    async def submit(self, job: ChatJob | CountJob) -> AsyncIterator[ChatEvent]:
        """Run a job, and yield its events up to a terminal one."""
        task = self._tasks[job.id] = Task(job, asyncio.Queue())
        yield Queued()
        admission = asyncio.create_task(self._admit(task))
        try:
            while True:
                event = await task.events.get()
                yield event
                if isinstance(event, TERMINAL_EVENTS):
                    return
        finally:
            self._end(task)  # the caller may have left before the last event
            admission.cancel()
            del self._tasks[job.id]
            if job.checkpoint not in self._checkpoints:  # the catalog has dropped it
                self._loop.call_soon(self._device_loop.evict_idle)

    def cancel(self, job_id: str) -> None:
        """Stop a job: a chat within one step, and what prepares it at once."""
        if task := self._tasks.get(job_id):
            self._fail(task, Cancelled())

    async def load(self, spec: ChatSpec) -> ChatCheckpoint:
        """Return the loaded checkpoint, after loading it if necessary. Raises CheckpointError."""
        if spec not in self._checkpoints:
            self._checkpoints[spec] = self._loop.run_in_executor(self._loader, self._load, spec)
        try:
            checkpoint = await asyncio.shield(self._checkpoints[spec])
        except Exception:
            self._checkpoints.pop(spec, None)  # the next job may find the folder repaired
            raise
        self._split_cache()
        return checkpoint

    def _load(self, spec: ChatSpec) -> ChatCheckpoint:
        """Load a checkpoint. Raises CheckpointError, and MemoryTaken where other programs have what it needs."""
        try:
            return self._load_or_move(spec)
        except Exception as error:
            if is_out_of_memory(error) and self._device.type == "cuda":
                size, left = loaded_bytes(spec.path, spec.quantize), available_bytes(self._device)
                if size > left:
                    raise memory_taken(str(spec.path), size, left, self._device) from error
            raise

    def _load_or_move(self, spec: ChatSpec) -> ChatCheckpoint:
        if (checkpoint := self._on_host.get(spec)) is None:
            load = functools.partial(with_memory, self._device, load_chat, spec, self._device, self._cache_share)
            return run_and_release(load)
        with_memory(self._device, move_modules, [checkpoint.model], self._device)
        return self._on_host.pop(spec)

    def _split_cache(self) -> None:
        """Split the memory in equal parts between the checkpoints that have loaded and keep anything there."""
        keeping = sum(checkpoint.batching.token_bytes > 0 for checkpoint in self._loaded().values())
        self._cache_share.bytes = self._cache_bytes // max(1, keeping)

    def _loaded(self) -> dict[ChatSpec, ChatCheckpoint]:
        ended = {spec: load for spec, load in self._checkpoints.items() if load.done() and not load.cancelled()}
        return {spec: load.result() for spec, load in ended.items() if load.exception() is None}

    async def prepare(self, spec: ChatSpec) -> ChatCapabilities:
        """Load a checkpoint before the first job, and return the facts about it. Raises CheckpointError."""
        return (await self.load(spec)).found

    def unload_except(self, specs: Iterable[ChatSpec]) -> None:
        """Keep the checkpoints of these specs, those of the catalog now. Others are evicted as soon as no chat uses
        them."""
        retained = frozenset(specs)
        self._loader.submit(self._delete_from_host, retained)
        self._checkpoints = {spec: loading for spec, loading in self._checkpoints.items() if spec in retained}
        self._split_cache()
        self._device_loop.unload_except(retained)

    async def sleep(self) -> None:
        """Move all weights to the host's memory; those that can't be moved are read from the disk next time."""
        loaded = self._loaded()
        for spec in loaded:
            del self._checkpoints[spec]
        await self._loop.run_in_executor(self._loader, self._leave_device, loaded)

    def _leave_device(self, loaded: dict[ChatSpec, ChatCheckpoint]) -> None:
        self._device_loop.release(loaded.values())
        self._on_host |= {spec: each for spec, each in loaded.items() if not each.is_quantized}
        watch_device(self._device, move_modules, [each.model for each in self._on_host.values()], HOST)
        loaded.clear()
        watch_device(self._device, free_memory, self._device)

    def _delete_from_host(self, retained: frozenset[ChatSpec]) -> None:
        self._on_host = {spec: checkpoint for spec, checkpoint in self._on_host.items() if spec in retained}

    async def _admit(self, task: Task) -> None:
        """Bring a job as far as the device loop, or end it: whatever fails on the way, its caller gets an event."""
        try:
            await self._build(task)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            self._fail(task, error)

    async def _build(self, task: Task) -> None:
        """Load the checkpoint, build the prompt, and hand the sequences to the device loop."""
        job = task.job
        try:
            checkpoint = await self.load(job.checkpoint)
        except Exception as error:
            self._emit(task, replace(to_failed_event(error, job), movable="anywhere"))
            return
        emit = self._emitter(task)
        if isinstance(job, CountJob):
            tokens = await self._preparation.run(job.owner, count_prompt_tokens, checkpoint, job, emit)
            self._emit(task, CountFinished(tokens))
            return
        sequences, admitted = await self._preparation.run(job.owner, build_sequences, checkpoint, job, emit)
        task.request = sequences[0].request
        if task.done:
            return
        self._emit(task, admitted)
        self._device_loop.add(sequences)

    def _emitter(self, task: Task) -> Callable[[ChatEvent], None]:
        """Return the function that emits a job's events, for use on any thread. All events of one step wake the event
        loop once."""

        def emit(event: ChatEvent) -> None:
            self._outbox.append((task, event))
            if not self._flush_scheduled:
                self._flush_scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody listens
                    self._loop.call_soon_threadsafe(self._flush)

        return emit

    def _flush(self) -> None:
        self._flush_scheduled = False  # first: an event that comes from now on schedules another flush
        while self._outbox:
            self._emit(*self._outbox.popleft())

    def _emit(self, task: Task, event: ChatEvent) -> None:
        if not task.done:
            task.done = isinstance(event, TERMINAL_EVENTS)
            if isinstance(event, Failed) and task.request and task.request.started_at is not None:
                task.events.put_nowait(PartialUsage(task.request.usage))
            task.events.put_nowait(event)

    def _fail(self, task: Task, error: BaseException) -> None:
        self._emit(task, to_failed_event(error, task.job))
        self._end(task)

    def _end(self, task: Task) -> None:
        task.done = True
        if task.request is not None:
            task.request.done = True  # the device thread drops it before its next step
