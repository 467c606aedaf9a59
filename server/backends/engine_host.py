"""Starts a worker, watches it and restarts it. To the server it is an engine like the one inside the worker.

Images, chat and classifiers have a worker each, so they don't share memory or crashes.

When a worker dies, its jobs fail, and nothing else. The next one starts at once, or with exponential backoff while
workers die soon after their start. A worker that does not answer is killed, and so is one whose job is stuck.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar, cast

import structlog

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.protocol.chat import ChatCapabilities, ChatJob, CountJob
from pipelines.protocol.classify import ClassifyJob
from pipelines.protocol.engine import Engine
from pipelines.protocol.images import Failed, ImageJob, Queued
from pipelines.protocol.messages import (
    AnyEvent,
    Asleep,
    CachedCheckpoints,
    Cancel,
    Capabilities,
    CheckpointState,
    DeviceChoice,
    FromWorker,
    Job,
    JobEvent,
    JobKind,
    Load,
    NoGpu,
    Pong,
    Ready,
    Sharing,
    Sleep,
    Spec,
    Submit,
    ToWorker,
    UnloadExcept,
    WorkerMemory,
)
from server.backends.child_process import ChildProcess
from server.backends.engine_errors import QueueFull, WorkerDied
from server.backends.host_limits import HostLimits, RestartDelay
from server.backends.job_events import TERMINAL_EVENTS, EventT, JobEvents
from server.backends.job_speeds import JobSpeeds
from server.backends.pending_job import PendingJob, death_message
from server.backends.transport import Launcher, Transport
from server.backends.watchdog import Watchdog
from server.backends.worker_sleep import Place, WorkerSleep

log = structlog.stdlib.get_logger("darkroom.engine")

JobT = TypeVar("JobT", ImageJob, ChatJob | CountJob, ClassifyJob)


class EngineHost(Engine[JobT, Spec, EventT], Generic[JobT, EventT]):
    """One worker after another, in the same place. Call `start` before use and `stop` after it, all on one event loop.

    `launcher` starts them; without one they are child processes. `name` tells this host from others of its kind.
    """

    def __init__(
        self,
        kind: JobKind,
        checkpoints: Iterable[Spec],
        limits: HostLimits,
        device: DeviceChoice = "auto",
        launcher: Launcher | None = None,
        name: str | None = None,
    ) -> None:
        self.kind = kind
        self.name = name or kind
        self._launcher: Launcher = launcher or ChildProcess(kind)
        self.device_choice = device  # "auto" becomes "cuda" with the first worker that finds a GPU
        self._concurrency = limits.concurrency
        self._preload = tuple(checkpoints)
        self._max_jobs = limits.jobs
        self._pending: dict[str, PendingJob] = {}
        # Before the worker acknowledged them; Cancel is sent when it does. Until their end it may read their images.
        self._cancelled_early: dict[str, Job] = {}
        self._transport: Transport | None = None  # None while there is no worker
        self._supervisor: asyncio.Task[None] | None = None
        self.speeds = JobSpeeds()
        self._watchdog = Watchdog(
            limits.silence_s, self._pending, lambda: self.device is not None, lambda: self.checkpoints
        )
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
        self._loading: set[Spec] = set()  # the worker was told to, and has not said what became of it
        self._preparing: dict[Spec, asyncio.Future[CheckpointState]] = {}
        self._to_load: list[Spec] = []  # by a worker that wakes
        self.sleep_state = WorkerSleep(self.name, limits.idle_unload_s, self._is_idle, self._begin_sleep)

    @property
    def jobs(self) -> int:
        """Return how many jobs wait or run."""
        return len(self._pending)

    def pending(self) -> list[tuple[Job, float]]:
        """Return the jobs that wait or run, each with the part of an image job's steps that is left, from 1 to 0."""
        return [(pending.job, pending.share_left) for pending in self._pending.values()]

    @property
    def running(self) -> int:
        """Return how many of the jobs have started on the device."""
        return sum(pending.on_device for pending in self._pending.values())

    @property
    def problem(self) -> str | None:
        """Return the reason of the last worker's end, while none is up after it."""
        return self._last_end if self.device is None else None

    @property
    def pid(self) -> int | None:
        """Return the worker's process id while it lives, if it is on this machine."""
        return self._transport.pid if self._transport is not None else None

    @property
    def ready(self) -> bool:
        """Return whether the worker sleeps, or is up and has loaded, or failed to load, every checkpoint to preload."""
        return self.takes_jobs and all(spec in self.checkpoints for spec in self._preload)

    @property
    def loading(self) -> list[Spec]:
        """Return the checkpoints that the worker loads, or will load before it is ready."""
        wanted = dict.fromkeys([*self._preload, *self._loading])
        return [spec for spec in wanted if spec not in self.checkpoints]

    @property
    def takes_jobs(self) -> bool:
        """Return whether the worker is up, or sleeps, or comes back from that."""
        return self.device is not None or self.sleep_state.state != "awake"

    @property
    def can_sleep(self) -> bool:
        """Return whether this server may end the worker: it is its own."""
        return self._launcher.owns_worker and self._supervisor is not None

    def wake_s(self, spec: Spec) -> float:
        """Return how long it takes until a checkpoint is back that left the device in a sleep; 0 if none has."""
        return self.sleep_state.wake_s(self.checkpoints.get(spec), up=self._transport is not None)

    def capabilities(self, spec: Spec) -> Capabilities | None:
        """Return the capabilities of an image checkpoint; None until it is loaded."""
        state = self.checkpoints.get(spec)
        return state.capabilities if state else None

    def chat_capabilities(self, spec: Spec) -> ChatCapabilities | None:
        """Return what a chat checkpoint is; None until it is loaded."""
        state = self.checkpoints.get(spec)
        return state.chat if state else None

    def unit_s(self, spec: Spec) -> float | None:
        """Return the seconds of a unit of work, of the last image or of warmup. None if it was not measured here."""
        found = self.capabilities(spec)
        return self.speeds.unit_s.get(spec) or (found.unit_s if found else None)

    async def wait_ready(self) -> None:
        """Wait until the host has been `ready` once."""
        await self._became_ready.wait()

    async def start(self) -> None:
        """Start the worker, and restart it until `stop`."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine host")

    async def stop(self) -> None:
        """End the worker. Its jobs fail."""
        if self._supervisor is None:
            return
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        self._fail_pending()  # those that had just woken a worker

    async def prepare(self, spec: Spec) -> Capabilities | None:
        """Load and warm up a checkpoint while jobs go on. Raises CheckpointError, WorkerDied."""
        if self._transport is None and self.sleep_state.state == "awake":
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
        self.speeds.keep(set(specs))
        self.sleep_state.keep(set(specs))
        self._send(UnloadExcept(tuple(specs)))
        self._load([spec for spec in preload if spec not in self.checkpoints and spec not in self._loading])

    async def sleep(self, place: Place = "disk") -> None:
        """Move the weights off the device as soon as no job needs them. Returns when they have left it or, if jobs run,
        at once: they end first."""
        self.sleep_state.ask(place)
        if self.sleep_state.state == "asleep":
            await self.sleep_state.gone.wait()

    def wake(self) -> None:
        """Load again what has left the device, before a job needs it."""
        self.sleep_state.cancel_sleep()
        self._wake_for(self.checkpoints)

    def _wake_for(self, specs: Iterable[Spec]) -> None:
        self._load([spec for spec in specs if self.sleep_state.is_cold(spec) and spec not in self._loading])
        self.sleep_state.wake()

    def _is_idle(self) -> bool:
        busy = self._pending or self._cancelled_early or self._loading or self._preparing
        return self._transport is not None and self.device is not None and not busy and self.can_sleep

    def _begin_sleep(self, place: Place) -> None:
        """Let the worker sleep, which is idle: end it, or have it move its weights."""
        self.sleep_state.slept(self.checkpoints, place)
        if place == "host":
            self._send(Sleep())
        elif self._transport is not None:
            self._transport.kill()
            self._transport = None  # jobs that come wait for the next one

    def _load(self, specs: Sequence[Spec]) -> None:
        if not specs:
            return
        self.sleep_state.wake()
        if self._transport is not None:
            self._loading |= set(specs)
            self._send(Load(tuple(specs)))
        else:
            self._to_load += [spec for spec in specs if spec not in self._to_load]

    def submit(self, job: JobT) -> JobEvents[EventT]:
        """Send the job to the worker, and return its events. Raises QueueFull."""
        if len(self._pending) >= self._max_jobs:
            raise QueueFull(self.kind, self.speeds.job_s * len(self._pending) / self._concurrency)
        pending = self._pending[job.id] = PendingJob(job)
        wake_s = self.wake_s(job.checkpoint)
        self._wake_for((job.checkpoint,))
        if self._transport is None:  # restarting: the next worker gets it
            pending.events.put_nowait(Queued())
        else:
            self._send(Submit(job))
        return JobEvents(cast(asyncio.Queue[EventT], pending.events), wake_s)

    def cancel(self, job_id: str) -> None:
        """Stop a job within one step. Ids that are not pending are ignored."""
        pending = self._pending.get(job_id)
        if pending is None:
            return
        if pending.acknowledged:
            self._send(Cancel(job_id))
        else:
            if self._transport is not None:  # else it has not been sent
                self._cancelled_early[job_id] = pending.job
            self._deliver(job_id, Failed("cancelled", "The job was cancelled; nothing was charged."))

    def _send(self, message: ToWorker) -> None:
        if self._transport is not None:
            self._transport.send([message])

    async def _supervise(self) -> None:
        restart_delay = RestartDelay()
        while True:
            began, slept = time.monotonic(), False
            try:
                if slept := await self._run_worker():
                    await self.sleep_state.woken.wait()
                    continue
            except OSError as error:  # or a machine of the cluster that is away
                self._last_end = str(error)
                log.error("no worker", worker=self.name, reason=str(error), jobs_lost=len(self._pending))  # noqa: TRY400
            except Exception:  # such as no memory for a process, or no descriptor: retry
                log.exception("worker failed", worker=self.name, jobs_lost=len(self._pending))
            finally:
                if not slept:
                    self._fail_pending()
            self.restarts += 1
            await asyncio.sleep(restart_delay.after_s(time.monotonic() - began))

    async def _run_worker(self) -> bool:
        """Start one worker and handle its messages until it ends. Return whether it ended to sleep."""
        specs = self._to_load if self.sleep_state.state == "waking" else self._preload
        self.device, self._to_load = None, []
        self.sleep_state.record_starting()
        transport = self._transport = await self._launcher.open(self.device_choice)
        watch = asyncio.create_task(self._watchdog.watch(transport, self.name))
        try:
            if self._retained:
                self._send(UnloadExcept(self._retained))
            self._load(specs)
            for pending in list(self._pending.values()):
                self._send(Submit(pending.job))
            pid = transport.pid
            while messages := await transport.receive():
                if self._transport is transport:  # else it was told to end
                    self._receive(messages)
            if slept := self._transport is not transport or self.sleep_state.place is not None:
                self._on_asleep()
            else:
                reason = self._last_end = self._no_device or await transport.end_reason()
                log.warning("worker died", worker=self.name, pid=pid, reason=reason, jobs_lost=len(self._pending))
        finally:
            watch.cancel()
            await transport.close()
        self.sleep_state.gone.set()
        return slept

    def _receive(self, messages: Sequence[FromWorker]) -> None:
        self._watchdog.last_message_at = time.monotonic()
        for message in messages:
            self._handle(message)
        if self.ready:
            self._became_ready.set()
        if self.device is not None and not self._loading:
            self.sleep_state.record_awake()
        self.sleep_state.update()

    def _on_asleep(self) -> None:
        """Record that the worker's process has ended, to sleep or in its sleep: nothing of it is left on the device."""
        self._transport = self.memory = self.cached_checkpoints = None
        if self.sleep_state.place == "host":
            self.sleep_state.slept(self.checkpoints, "disk")

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
            case Asleep():
                self.sleep_state.gone.set()
            case NoGpu():
                self._no_device = message.reason
            case Ready():
                self.device, self._no_device = message.device, None
                self.sleep_state.record_started()
                if message.is_gpu:
                    self.device_choice = "cuda"  # a GPU that is lost is not replaced by the CPU
                log.info("worker ready", worker=self.name, device=message.device, pid=self.pid)

    def _handle_checkpoint_state(self, state: CheckpointState) -> None:
        reported = {(known.spec.name, known.state, known.detail) for known in self.checkpoints.values()}
        if (state.spec.name, state.state, state.detail) not in reported:  # several models may share one
            log.info(
                "checkpoint", worker=self.name, name=state.spec.name, file=state.spec.source, state=state.state,
                detail=state.detail,
            )  # fmt: skip
        self._loading.discard(state.spec)
        if state.state == "loaded":
            self._watchdog.record_loaded(state.spec)
            self.sleep_state.record_warm(state.spec)
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
        pending.record(event)
        self._watchdog.record_event(pending, event)
        if isinstance(event, TERMINAL_EVENTS):
            del self._pending[job_id]
        self.speeds.record(pending.job, event)

    def _fail_pending(self) -> None:
        """Fail every job of the dead worker."""
        self._transport = self.device = self.memory = self.cached_checkpoints = None
        self.sleep_state.record_death()
        self.checkpoints.clear()
        self.sharing = Sharing()
        self._loading.clear()
        for future in self._preparing.values():
            if not future.done():
                future.set_exception(WorkerDied(self.kind))
        self._preparing.clear()
        self._cancelled_early.clear()
        for job_id in list(self._pending):
            self._deliver(job_id, Failed("worker_died", death_message(self.kind, self._no_device, self._last_end)))
