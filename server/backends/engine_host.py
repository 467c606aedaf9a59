"""Starts a worker, watches it and restarts it. To the server it is an engine like the one inside the worker.

Images, chat and classifiers have a worker each, so they don't share memory or crashes.

When a worker dies, its jobs fail, and nothing else. The next one starts at once, or with exponential backoff while
workers die soon after their start. A worker that does not answer is killed, and so is one whose job is stuck.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, cast

import structlog

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.catalog.estimate import is_duration
from pipelines.protocol.chat import Admitted, ChatFinished, ChatFound, ChatJob, CountJob
from pipelines.protocol.classify import Classified, ClassifyJob
from pipelines.protocol.engine import Engine
from pipelines.protocol.images import Failed, Finished, ImageJob, Progress, Queued, Started
from pipelines.protocol.messages import (
    AnyEvent,
    CachedCheckpoints,
    Cancel,
    Capabilities,
    CheckpointState,
    DeviceChoice,
    FromWorker,
    Job,
    JobEvent,
    Load,
    NoGpu,
    Ping,
    Pong,
    Ready,
    Sharing,
    Spec,
    Submit,
    ToWorker,
    UnloadExcept,
    WorkerMemory,
)
from server.backends.child_process import ChildProcess
from server.backends.job_events import TERMINAL_EVENTS, EventT, JobEvents
from server.backends.transport import NO_MEMORY, Launcher, Transport

log = structlog.stdlib.get_logger("darkroom.engine")

HEALTHY_UPTIME_S = 30.0  # after which a death is not counted as a failed start
MAX_BACKOFF_S = 10.0
HEARTBEAT_S = 10.0  # at most, from one question whether the worker answers to the next
SILENCE_S = 300.0  # longer than any forward pass, decode or compilation takes
STUCK_GRACE_S = 30.0  # without an event for its time limit and this, a job is stuck in native code
INITIAL_JOB_S = 10.0  # assumed duration of a job until one has finished
RUN_SMOOTHING = 0.2  # weight of a new job's duration

Kind = Literal["image", "chat", "classify"]
JobT = TypeVar("JobT", ImageJob, ChatJob | CountJob, ClassifyJob)


class QueueFull(Exception):
    """The queue is full; `retry_after_s` estimates when it is not."""

    def __init__(self, kind: Kind, retry_after_s: float) -> None:
        super().__init__(f"the {kind} queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class WorkerDied(Exception):
    """The worker died, or was restarting, while a checkpoint was being prepared."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"the {kind} worker died while the checkpoint was loading")


@dataclass(slots=True)
class _Pending:
    """A job that was submitted and has not ended."""

    job: Job
    events: asyncio.Queue[AnyEvent] = field(default_factory=asyncio.Queue)
    acknowledged: bool = False  # the worker has sent an event of it
    started: bool = False
    admitted: bool = False  # a chat's prompt is built
    on_device: bool = False
    share_left: float = 1.0  # of an image job's steps
    last_event_at: float = 0.0  # by the monotonic clock


class EngineHost(Engine[JobT, Spec, EventT], Generic[JobT, EventT]):
    """One worker after another, in the same place. Call `start` before use and `stop` after it, all on one event loop.

    `launcher` starts them; without one they are child processes. `name` tells this host from others of its kind.
    """

    def __init__(
        self,
        kind: Kind,
        checkpoints: Iterable[Spec],
        max_jobs: int,
        concurrency: int = 1,
        silence_s: float = SILENCE_S,
        device: DeviceChoice = "auto",
        launcher: Launcher | None = None,
        name: str | None = None,
    ) -> None:
        self.kind = kind
        self.name = name or kind
        self._launcher: Launcher = launcher or ChildProcess(kind)
        self._silence_s = silence_s
        self._device_choice = device  # "auto" becomes "cuda" with the first worker that finds a GPU
        self._concurrency = concurrency  # jobs that share the device
        self._preload = tuple(checkpoints)
        self._max_jobs = max_jobs
        self._pending: dict[str, _Pending] = {}
        # Before the worker acknowledged them; Cancel is sent when it does. Until their end it may read their images.
        self._cancelled_early: dict[str, Job] = {}
        self._transport: Transport | None = None  # None while there is no worker
        self._supervisor: asyncio.Task[None] | None = None
        self._run_s = INITIAL_JOB_S
        self._last_message_at = self._last_event_at = 0.0  # of the worker, of any job; by the monotonic clock
        self._became_ready = asyncio.Event()
        self.device: str | None = None  # None until the worker is ready
        self._no_device: str | None = None  # why the last worker found none
        self._last_end: str | None = None  # why the last worker ended
        self.restarts = 0
        self.memory: WorkerMemory | None = None  # of the worker, at its latest heartbeat
        self.checkpoints: dict[Spec, CheckpointState] = {}
        self.cached_checkpoints: CachedCheckpoints | None = None  # an image worker's weights in memory
        self.sharing = Sharing()  # of an engine that other servers use too
        self._retained: tuple[Spec, ...] = ()
        self._unit_s: dict[Spec, float] = {}
        self._loading: set[Spec] = set()  # the worker was told to, and has not said what became of it
        self._preparing: dict[Spec, asyncio.Future[CheckpointState]] = {}

    @property
    def jobs(self) -> int:
        """Return how many jobs wait or run."""
        return len(self._pending)

    def pending(self) -> list[tuple[Job, float]]:
        """Return the jobs that wait or run, each with the part of its work that is left: from 1 down to 0 for image
        jobs, else 1."""
        return [(pending.job, pending.share_left) for pending in self._pending.values()]

    @property
    def running(self) -> int:
        """Return how many of the jobs have started on the device."""
        return sum(pending.on_device for pending in self._pending.values())

    @property
    def job_s(self) -> float:
        """Return the seconds that a job runs, smoothed."""
        return self._run_s

    @property
    def problem(self) -> str | None:
        """Return the reason of the last worker's end, while none is up after it."""
        return self._last_end if self.device is None else None

    @property
    def pid(self) -> int | None:
        """Return the worker's process id while it lives, if it is on this machine."""
        return self._transport.pid if self._transport is not None else None

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of the weights on an image worker's device."""
        return self.cached_checkpoints.device_bytes if self.cached_checkpoints is not None else 0

    @property
    def ready(self) -> bool:
        """Return whether the worker is up and has loaded, or failed to load, every checkpoint to preload."""
        return self.device is not None and all(spec in self.checkpoints for spec in self._preload)

    def capabilities(self, spec: Spec) -> Capabilities | None:
        """Return the capabilities of an image checkpoint; None until it is loaded."""
        state = self.checkpoints.get(spec)
        return state.capabilities if state else None

    def chat_found(self, spec: Spec) -> ChatFound | None:
        """Return what a chat checkpoint is; None until it is loaded."""
        state = self.checkpoints.get(spec)
        return state.chat if state else None

    def unit_s(self, spec: Spec) -> float | None:
        """Return the seconds of a unit of work (pipelines.catalog.estimate), of the last image or of warmup. None if it
        was not measured here."""
        capabilities = self.capabilities(spec)
        return self._unit_s.get(spec) or (capabilities.unit_s if capabilities else None)

    async def wait_ready(self) -> None:
        """Wait until it has been `ready` once."""
        await self._became_ready.wait()

    async def start(self) -> None:
        """Start the worker, and restart it until `stop`."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine host")

    async def stop(self) -> None:
        """End the worker. Its jobs fail."""
        if self._supervisor is None:
            return
        self._supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervisor

    async def prepare(self, spec: Spec) -> Capabilities | None:
        """Load and warm up a checkpoint while jobs go on. Raises CheckpointError, WorkerDied."""
        if self._transport is None:
            raise WorkerDied(self.kind)
        future = self._preparing.setdefault(spec, asyncio.get_running_loop().create_future())
        self._load((spec,))
        state = await asyncio.shield(future)
        if state.state == "failed":
            raise CheckpointError(state.detail)
        return state.capabilities

    def unload_except(self, specs: Sequence[Spec], preload: Sequence[Spec] = ()) -> None:
        """Keep only these checkpoints, which are those of the catalog: the worker may evict others. It loads those of
        `preload` that it has not loaded, and so does every later worker."""
        self._preload, self._retained = tuple(preload), tuple(specs)
        self.checkpoints = {spec: state for spec, state in self.checkpoints.items() if spec in set(specs)}
        self._unit_s = {spec: unit_s for spec, unit_s in self._unit_s.items() if spec in set(specs)}
        self._send(UnloadExcept(tuple(specs)))
        self._load([spec for spec in preload if spec not in self.checkpoints and spec not in self._loading])

    def _load(self, specs: Sequence[Spec]) -> None:
        if self._transport is not None and specs:
            self._loading |= set(specs)
            self._send(Load(tuple(specs)))

    def submit(self, job: JobT) -> JobEvents[EventT]:
        """Send the job to the worker. Raises QueueFull."""
        if len(self._pending) >= self._max_jobs:
            raise QueueFull(self.kind, self._run_s * len(self._pending) / self._concurrency)
        pending = self._pending[job.id] = _Pending(job)
        if self._transport is None:  # restarting: the next worker gets it
            pending.events.put_nowait(Queued())
        else:
            self._send(Submit(job))
        return JobEvents(cast(asyncio.Queue[EventT], pending.events))

    def cancel(self, job_id: str) -> None:
        """Stop a job within one step. Ids that are not pending are ignored."""
        pending = self._pending.get(job_id)
        if pending is None:
            return
        if pending.acknowledged:
            self._send(Cancel(job_id))
        else:
            self._cancelled_early[job_id] = pending.job
            self._deliver(job_id, Failed("cancelled", "The job was cancelled; nothing was charged."))

    def _send(self, message: ToWorker) -> None:
        if self._transport is not None:
            self._transport.send([message])

    async def _supervise(self) -> None:
        backoff_s = 0.0
        while True:
            began = time.monotonic()
            try:
                await self._run_worker()
            except OSError as error:  # or a machine of the cluster that is away
                self._last_end = str(error)
                log.error("no worker", worker=self.name, reason=str(error), jobs_lost=len(self._pending))  # noqa: TRY400
            except Exception:  # such as no memory for a process, or no descriptor: retry
                log.exception("worker failed", worker=self.name, jobs_lost=len(self._pending))
            finally:
                self._fail_pending()
            self.restarts += 1
            was_healthy = time.monotonic() - began > HEALTHY_UPTIME_S
            backoff_s = 0.0 if was_healthy else min(MAX_BACKOFF_S, 2 * backoff_s + 0.25)
            await asyncio.sleep(backoff_s)

    async def _run_worker(self) -> None:
        """Start one worker and handle its messages until it dies."""
        transport = self._transport = await self._launcher.open(self._device_choice)
        watch = asyncio.create_task(self._watch(transport))
        try:
            if self._retained:
                self._send(UnloadExcept(self._retained))
            self._load(self._preload)
            for pending in list(self._pending.values()):
                self._send(Submit(pending.job))
            pid = transport.pid
            while messages := await transport.receive():
                self._last_message_at = time.monotonic()
                for message in messages:
                    self._handle(message)
                if self.ready:
                    self._became_ready.set()
            ended = await transport.end_reason()
            reason = self._last_end = self._no_device or ended
            log.warning("worker died", worker=self.name, pid=pid, reason=reason, jobs_lost=len(self._pending))
        finally:
            watch.cancel()
            await transport.close()

    def _handle(self, message: FromWorker) -> None:
        match message:
            case JobEvent():
                self._deliver(message.job_id, message.event)
            case CheckpointState():
                self._handle_checkpoint_state(message)
            case Pong():
                self.memory = message.memory
            case CachedCheckpoints():
                self.cached_checkpoints = message
            case Sharing():
                self.sharing = message
            case NoGpu():
                self._no_device = message.reason
            case Ready():
                self.device, self._no_device = message.device, None
                if message.is_gpu:
                    self._device_choice = "cuda"  # a GPU that is lost is not replaced by the CPU
                log.info("worker ready", worker=self.name, device=message.device, pid=self.pid)

    def _handle_checkpoint_state(self, state: CheckpointState) -> None:
        told = {(known.spec.name, known.state, known.detail) for known in self.checkpoints.values()}
        if (state.spec.name, state.state, state.detail) not in told:  # several models may share one
            log.info("checkpoint", worker=self.name, name=state.spec.name, state=state.state, detail=state.detail)
        self._loading.discard(state.spec)
        self.checkpoints[state.spec] = state
        if (future := self._preparing.pop(state.spec, None)) and not future.done():
            future.set_result(state)

    def _deliver(self, job_id: str, event: AnyEvent) -> None:
        pending = self._pending.get(job_id)
        if pending is None:
            if isinstance(event, TERMINAL_EVENTS):
                self._cancelled_early.pop(job_id, None)
            elif job_id in self._cancelled_early:
                self._send(Cancel(job_id))
            return
        pending.acknowledged = True
        pending.admitted = pending.admitted or isinstance(event, Admitted)
        if isinstance(event, Started):
            pending.on_device = pending.admitted or not isinstance(pending.job, ChatJob)
        pending.started = pending.started or isinstance(event, Started | Admitted)
        pending.last_event_at = self._last_event_at = time.monotonic()
        if isinstance(event, TERMINAL_EVENTS):
            del self._pending[job_id]
        if isinstance(event, Progress):
            pending.share_left = 1 - event.step / event.steps
        if isinstance(event, Finished) and isinstance(pending.job, ImageJob) and is_duration(event.unit_s):
            self._unit_s[pending.job.checkpoint] = event.unit_s
        if isinstance(event, Finished | ChatFinished | Classified) and math.isfinite(event.run_s):
            self._run_s += RUN_SMOOTHING * (event.run_s - self._run_s)
        pending.events.put_nowait(event)

    async def _watch(self, transport: Transport) -> None:
        """Kill the worker when it is stuck; `_run_worker` then restarts it. Its start has no time limit."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(min(self._silence_s / 8, HEARTBEAT_S))
            self._send(Ping())
            stalled = time.monotonic() - began > self._silence_s / 2  # this process itself was suspended
            if self.device is None or stalled:
                continue
            if stuck := self._stuck(time.monotonic()):
                log.error("killing a worker", worker=self.name, pid=transport.pid, reason=stuck)
                transport.kill()
                return

    def _stuck(self, now: float) -> str | None:
        """Return the reason why the worker is stuck; None if it is not. A preempted job has fewer events, but it has
        some."""
        started = [pending for pending in self._pending.values() if pending.started]
        if now - self._last_message_at > self._silence_s:
            return "it does not answer"
        if started and now - self._last_event_at > self._silence_s:
            return "none of its jobs makes progress"
        if any(now - pending.last_event_at > pending.job.time_limit_s + STUCK_GRACE_S for pending in started):
            return "a job makes no progress"
        return None

    def _fail_pending(self) -> None:
        """Fail every job of the dead worker."""
        self._transport = None
        self.device = self.memory = None
        self.checkpoints.clear()
        self.cached_checkpoints, self.sharing = None, Sharing()
        self._loading.clear()
        for future in self._preparing.values():
            if not future.done():
                future.set_exception(WorkerDied(self.kind))
        self._preparing.clear()
        self._cancelled_early.clear()
        for job_id in list(self._pending):
            self._deliver(job_id, Failed("worker_died", self._death_notice()))

    def _death_notice(self) -> str:
        """Return the message for the callers of a dead worker's jobs."""
        worker = f"The {self.kind} worker"
        if self._no_device is not None:
            return f"{worker} has no device to compute on; nothing was charged. Try again later."
        again = "while it was processing this job; nothing was charged. Please send the request again"
        if self._last_end == NO_MEMORY:
            return f"{worker} died: out of memory {again}. If that fails too, try a smaller size or fewer references."
        return f"{worker} died {again}."
