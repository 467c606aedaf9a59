"""The server's view of a worker process, which it spawns, watches and restarts. An engine like the one inside.

Images, chat and classifiers have a worker each, so that no one's memory or death touches another.

A dead worker fails the jobs that were in it and nothing else. The next one starts at once, or after a pause that
doubles while workers die young. A worker that has gone silent is killed, and so is one whose job is stuck.
"""

import asyncio
import pickle
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Literal, Self, TypeVar, cast

import structlog

from pipelines.protocol.chat import Admitted, ChatEvent, ChatFinished, ChatJob, Counted, CountJob
from pipelines.protocol.classify import Classified, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import Event, Failed, Finished, ImageJob, Queued, Started
from pipelines.protocol.messages import (
    HEADER,
    Abilities,
    Cancel,
    CheckpointState,
    FromWorker,
    Job,
    JobEvent,
    Keep,
    Ping,
    Ready,
    Spec,
    Submit,
    ToWorker,
    Warm,
    frame,
)

log = structlog.stdlib.get_logger("darkroom.engine")

LONG_LIFE_S = 30.0  # a worker that lived this long did not die of its own start
LONGEST_PAUSE_S = 10.0
SILENCE_S = 300.0  # longer than any forward pass, decode or compilation takes
STUCK_GRACE_S = 30.0  # past its time limit, a job that says nothing is stuck in native code
FIRST_GUESS_S = 10.0  # how long a job takes, before one has been seen
LAST = (Finished, ChatFinished, Counted, Classified, Failed)

Kind = Literal["image", "chat", "classify"]
JobT = TypeVar("JobT", ImageJob, ChatJob | CountJob, ClassifyJob)
EventT = TypeVar("EventT", Event, ChatEvent, ClassifyEvent)


class QueueFull(Exception):
    """No room for another job; `retry_after_s` is when there may be."""

    def __init__(self, kind: Kind, retry_after_s: float) -> None:
        super().__init__(f"the {kind} queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class WorkerDied(Exception):
    """The worker died, or was between two lives, while checkpoints were to be prepared."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"the {kind} worker died meanwhile")


@dataclass(slots=True)
class _Pending:
    """A job that the worker has and has not ended."""

    job: Job
    events: asyncio.Queue[Event | ChatEvent | ClassifyEvent] = field(default_factory=asyncio.Queue)
    taken: bool = False  # the worker has said something about it
    started: bool = False
    heard_at: float = 0.0  # when its last event came, by the monotonic clock


class JobEvents(Generic[EventT]):
    """A job's events up to its last. Whoever was interrupted while waiting for one may come back for the rest."""

    def __init__(self, events: asyncio.Queue[EventT]) -> None:
        self._events: asyncio.Queue[EventT] = events
        self.ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventT:
        if self.ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self.ended = isinstance(event, LAST)
        return event


class EngineHost(Generic[JobT, EventT]):
    """One worker process. `start` before use, `stop` after; everything runs on one event loop."""

    def __init__(
        self,
        kind: Kind,
        checkpoints: Iterable[Spec],
        max_jobs: int,
        at_once: int = 1,
        silence_s: float = SILENCE_S,
        options: Iterable[str] = (),
    ) -> None:
        self.kind = kind
        self._silence_s = silence_s
        self._options = tuple(options)  # of the worker's command line
        self._at_once = at_once  # jobs that share the device
        self._warm = Warm(tuple(checkpoints))
        self._max_jobs = max_jobs
        self._pending: dict[str, _Pending] = {}
        self._unwanted: set[str] = set()  # cancelled before the worker took them; it is told when it does
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._run_s = FIRST_GUESS_S
        self._heard_at = self._news_at = 0.0  # any message, any job's event; by the monotonic clock
        self._was_ready = asyncio.Event()
        self.device: str | None = None  # None until the worker is ready
        self.restarts = 0
        self.checkpoints: dict[Spec, CheckpointState] = {}
        self._expected: dict[Spec, asyncio.Future[CheckpointState]] = {}

    @property
    def jobs(self) -> int:
        """Jobs waiting or running."""
        return len(self._pending)

    @property
    def job_s(self) -> float:
        """How long a job lately ran."""
        return self._run_s

    @property
    def pid(self) -> int | None:
        """The worker's process id while it lives."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def ready(self) -> bool:
        """Whether the worker takes jobs and has tried every checkpoint it was asked to load."""
        return self.device is not None and all(spec in self.checkpoints for spec in self._warm.checkpoints)

    def abilities(self, spec: Spec) -> Abilities | None:
        """What requests may ask of a checkpoint; None until it is loaded."""
        state = self.checkpoints.get(spec)
        return state.abilities if state else None

    def warmed_unit_s(self, spec: Spec) -> float | None:
        """What a unit of work took while this checkpoint was warmed (pipelines.catalog.estimate), if it was."""
        abilities = self.abilities(spec)
        return abilities.unit_s if abilities else None

    async def wait_ready(self) -> None:
        """Until the first time that it is ready."""
        await self._was_ready.wait()

    async def start(self) -> None:
        """Spawn the worker and keep one running until `stop`."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine host")

    async def stop(self) -> None:
        """End the worker. Jobs still in it fail."""
        if self._supervisor is None:
            return
        self._supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervisor

    async def prepare(self, specs: Sequence[Spec]) -> list[CheckpointState]:
        """Load and warm checkpoints while jobs go on, and say what became of each. Raises WorkerDied."""
        if self._writer is None:
            raise WorkerDied(self.kind)
        loop = asyncio.get_running_loop()
        wanted = [self._expected.setdefault(spec, loop.create_future()) for spec in specs]
        self._send(Warm(tuple(specs)))
        return await asyncio.gather(*wanted)

    def keep(self, specs: Sequence[Spec], *, preload: bool) -> None:
        """The catalog names these now: the worker may let go of others, and its successor loads these at start."""
        self._warm = Warm(tuple(specs) if preload else ())
        self.checkpoints = {spec: state for spec, state in self.checkpoints.items() if spec in set(specs)}
        self._send(Keep(tuple(specs)))

    def submit(self, job: JobT) -> JobEvents[EventT]:
        """Hand the job to the worker. Raises QueueFull before anything is sent."""
        if len(self._pending) >= self._max_jobs:
            raise QueueFull(self.kind, self._run_s * len(self._pending) / self._at_once)
        pending = self._pending[job.id] = _Pending(job)
        if self._writer is None:  # between two workers: the next one gets it
            pending.events.put_nowait(Queued())
        else:
            self._send(Submit(job))
        return JobEvents(cast(asyncio.Queue[EventT], pending.events))

    def cancel(self, job_id: str) -> None:
        """Stop a job within one step; ids that are not pending are ignored."""
        pending = self._pending.get(job_id)
        if pending is None:
            return
        if pending.taken:
            self._send(Cancel(job_id))
        else:
            self._unwanted.add(job_id)
            self._deliver(job_id, Failed("cancelled", "The job was cancelled; nothing was charged."))

    def _send(self, message: ToWorker) -> None:
        if self._writer is not None:
            self._writer.write(frame([message]))

    async def _supervise(self) -> None:
        pause_s = 0.0
        while True:
            began = time.monotonic()
            try:
                await self._live()
            except Exception:  # such as no memory for a process, or no descriptor: the next try may have it
                log.exception("worker failed", kind=self.kind, jobs_lost=len(self._pending))
            finally:
                self._bury()
            self.restarts += 1
            pause_s = 0.0 if time.monotonic() - began > LONG_LIFE_S else min(LONGEST_PAUSE_S, 2 * pause_s + 0.25)
            await asyncio.sleep(pause_s)

    async def _live(self) -> None:
        """One worker's life, from spawn to the end of its messages."""
        ours, theirs = socket.socketpair()
        command = (sys.executable, "-m", "pipelines.worker", str(theirs.fileno()), self.kind, *self._options)
        try:
            with theirs:
                process = self._process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # a worker that was spawned ends by that
            raise
        watch = asyncio.create_task(self._watch(process))
        try:
            self._send(self._warm)
            for pending in list(self._pending.values()):
                self._send(Submit(pending.job))
            await self._receive(reader)
            log.warning("worker died", kind=self.kind, pid=process.pid, jobs_lost=len(self._pending))
        finally:
            watch.cancel()
            self._writer.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                body = await reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            self._heard_at = time.monotonic()
            for message in pickle.loads(body):
                self._take(message)
            if self.ready:
                self._was_ready.set()

    def _take(self, message: FromWorker) -> None:
        match message:
            case JobEvent():
                self._deliver(message.job_id, message.event)
            case CheckpointState():
                self._take_state(message)
            case Ready():
                self.device = message.device
                log.info("worker ready", kind=self.kind, device=message.device, pid=self.pid)

    def _take_state(self, state: CheckpointState) -> None:
        log.info("checkpoint", name=state.spec.name, state=state.state, detail=state.detail)
        self.checkpoints[state.spec] = state
        if (expected := self._expected.pop(state.spec, None)) and not expected.done():
            expected.set_result(state)

    def _deliver(self, job_id: str, event: Event | ChatEvent | ClassifyEvent) -> None:
        pending = self._pending.get(job_id)
        if pending is None:
            if job_id in self._unwanted:
                self._unwanted.discard(job_id)
                self._send(Cancel(job_id))
            return
        pending.taken = True
        pending.started = pending.started or isinstance(event, Started | Admitted)
        pending.heard_at = self._news_at = time.monotonic()
        if isinstance(event, LAST):
            del self._pending[job_id]
        if isinstance(event, Finished | ChatFinished | Classified):
            self._run_s += 0.2 * (event.run_s - self._run_s)
        pending.events.put_nowait(event)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill the worker when it is stuck; `_live` then sees it die. Until it is ready it may take its time."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(self._silence_s / 8)
            self._send(Ping())
            overslept = time.monotonic() - began > self._silence_s / 2  # it was this process that stood still
            if self.device is None or overslept:
                continue
            if stuck := self._stuck(time.monotonic()):
                log.error("killing a worker", kind=self.kind, pid=process.pid, reason=stuck)
                process.kill()
                return

    def _stuck(self, now: float) -> str | None:
        """What says that the worker will not go on by itself. A job that others pass has events, if fewer."""
        started = [pending for pending in self._pending.values() if pending.started]
        if now - self._heard_at > self._silence_s:
            return "it does not answer"
        if started and now - self._news_at > self._silence_s:
            return "none of its jobs goes on"
        if any(now - pending.heard_at > pending.job.time_limit_s + STUCK_GRACE_S for pending in started):
            return "a job does not go on"
        return None

    def _bury(self) -> None:
        """Fail every job that was in the dead worker."""
        self._writer = None
        self.device = None
        self.checkpoints.clear()
        for expected in self._expected.values():
            if not expected.done():
                expected.set_exception(WorkerDied(self.kind))
        self._expected.clear()
        self._unwanted.clear()
        message = (
            f"The {self.kind} worker died while it had this job; nothing was charged. Please send the request again."
        )
        for job_id in list(self._pending):
            self._deliver(job_id, Failed("worker_died", message))
