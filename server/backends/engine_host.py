"""Starts a worker, watches it and restarts it. To the server it is an engine like the one inside the worker.

Images, chat and classifiers have a worker each, so they don't share memory or crashes.

When a worker dies, its jobs fail, and nothing else. The next one starts at once, or with exponential backoff while
workers die soon after their start. A worker that does not answer is killed, and so is one whose job is stuck. One that
nothing needs may sleep. The states of a worker are in `worker_life`.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar, cast

import structlog

from pipelines.checkpoints.errors import CheckpointError
from pipelines.protocol.chat import ChatCapabilities, ChatJob, CountJob
from pipelines.protocol.classify import ClassifyJob
from pipelines.protocol.engine import Engine
from pipelines.protocol.images import Failed, Finished, ImageJob, Movable, Queued, Started
from pipelines.protocol.messages import (
    AnyEvent,
    Asleep,
    CachedCheckpoints,
    Capabilities,
    CheckpointState,
    DeviceChoice,
    Ending,
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
)
from server.backends import worker_life as life
from server.backends.child_process import ChildProcess
from server.backends.failed_loads import pixels
from server.backends.job_events import EventT, JobEvents, PendingJob, QueueFull, death_message
from server.backends.transport import Launcher
from server.backends.watchdog import SILENCE_S, Watchdog
from server.backends.worker_checkpoints import WorkerCheckpoints, WorkerDied
from server.backends.worker_jobs import WorkerJobs

log = structlog.stdlib.get_logger("darkroom.engine")

FIRST_START_S: Final = 15.0  # assumed for a worker's start until one was measured
LATE_S: Final = 300.0  # a start that takes longer holds up no other worker: its GPU or driver may hang
LATE: Final = (
    "its process has not come up within five minutes: a GPU or the driver hangs (look for Xid in dmesg), or the disk "
    "with its libraries is very slow"
)
JobT = TypeVar("JobT", ImageJob, ChatJob | CountJob, ClassifyJob)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How many jobs a host takes and how many of them share the device; after how long without a sign its worker is
    taken for dead, and after how long without a job it sleeps, None for never."""

    jobs: int
    concurrency: int = 1
    silence_s: float = SILENCE_S
    idle_unload_s: float | None = None


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
        self.device_choice = device  # "auto" becomes "cuda" with the first worker that finds a GPU
        self.restarts = 0
        self._launcher: Launcher = launcher or ChildProcess(kind)
        self._limits = limits
        self._state: life.State = life.Stopped()
        self._start_s = FIRST_START_S  # how long the latest worker took to be up
        self._checkpoints = WorkerCheckpoints(checkpoints)
        self.failures = self._checkpoints.failures
        self._jobs = WorkerJobs(self._send, self._record_job)
        self.speeds = self._jobs.speeds
        self._watchdog = Watchdog(
            limits.silence_s, self._jobs.pending, lambda: self.status.device is not None, self._checkpoints.is_loaded
        )
        self.sleep_wanted: life.Place | None = None  # as soon as nothing needs the worker
        self._idle_timer: asyncio.TimerHandle | None = None  # counts while nothing needs the worker
        self._became_ready = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def jobs(self) -> int:
        """Return how many jobs wait or run."""
        return len(self._jobs.pending)

    def pending(self) -> list[tuple[Job, float]]:
        """Return the jobs that wait or run, each with the part of an image job's steps that is left, from 1 to 0."""
        return [(pending.job, pending.share_left) for pending in self._jobs.pending.values()]

    @property
    def running(self) -> int:
        """Return how many of the jobs have started on the device."""
        return sum(pending.on_device for pending in self._jobs.pending.values())

    @property
    def status(self) -> life.WorkerStatus:
        """Return what the worker is doing now."""
        status = life.status_of(self._state)
        return replace(status, problem=LATE) if self.is_late and status.problem is None else status

    @property
    def ready(self) -> bool:
        """Return whether the worker sleeps, or is up and has loaded, or failed to load, every checkpoint to preload."""
        return self.status.takes_jobs and all(spec in self.checkpoints for spec in self._checkpoints.preload)

    @property
    def is_late(self) -> bool:
        """Return whether a worker has long been spawned and has not come up. It is waited for no more, and may come."""
        state = self._state
        return isinstance(state, life.Starting) and time.monotonic() - state.worker.began > LATE_S

    @property
    def can_sleep(self) -> bool:
        """Return whether this server may end the worker: it is its own."""
        return self._launcher.owns_worker and not isinstance(self._state, life.Stopped)

    @property
    def checkpoints(self) -> dict[Spec, CheckpointState]:
        """Return what became of each checkpoint that was loaded, whether or not it has left the device since."""
        return self._checkpoints.states

    @property
    def loading(self) -> list[Spec]:
        """Return the checkpoints that the worker loads, or will load before it is ready."""
        wanted = dict.fromkeys([*self._checkpoints.preload, *self._checkpoints.loading])
        return [spec for spec in wanted if spec not in self.checkpoints]

    def wake_s(self, spec: Spec) -> float:
        """Return how long it takes until a checkpoint is back that left the device in a sleep; 0 if none has."""
        return self._checkpoints.wake_s(spec, None if life.worker_of(self._state) else self._start_s)

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
        self._move("start")
        self._supervisor = asyncio.create_task(self._supervise(), name="engine host")

    async def stop(self) -> None:
        """End the worker. Its jobs fail."""
        if self._supervisor is None:
            return
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        self._move("stop")
        self._fail_jobs(death_message(self.kind, "it was stopped"))

    async def prepare(self, spec: Spec) -> Capabilities | None:
        """Load and warm up a checkpoint while jobs go on. Raises CheckpointError, WorkerDied."""
        if life.is_down(self._state):
            raise WorkerDied(self.kind)
        future = self._checkpoints.preparing(spec)
        self._load((spec,))
        state = await asyncio.shield(future)
        if state.state == "failed":
            raise CheckpointError(state.detail)
        return state.capabilities

    def unload_except(self, specs: Sequence[Spec], preload: Sequence[Spec] = (), *, retries: bool = True) -> None:
        """Keep only these checkpoints, which are those of the catalog: the worker may evict others. It loads those of
        `preload` that it has not loaded, and so does every later worker. What has failed is tried again by `retries`
        alone."""
        missing = self._checkpoints.retain(specs, preload, retries=retries)
        self.speeds.keep(set(specs))
        self._send(UnloadExcept(tuple(specs)))
        if missing:
            self._load(missing)

    async def sleep(self, place: life.Place = "disk") -> None:
        """Move the weights off the device as soon as no job needs them. Returns when they have left it or, if jobs run,
        at once: they end first."""
        self._request_sleep(place)
        if isinstance(self._state, life.AsleepOnHost | life.AsleepOnDisk):
            await self._state.worker.off_device.wait()

    def wake(self) -> None:
        """Load again what has left the device, before a job needs it."""
        self.sleep_wanted = None
        self._load(self._checkpoints.cold(self.checkpoints))

    def submit(self, job: JobT) -> JobEvents[EventT]:
        """Send the job to the worker, and return its events. One whose checkpoint has failed to load, and would fail
        again, is refused. Raises QueueFull."""
        if self.failures.refuses(job.checkpoint):
            return self.failures.refuse(job.checkpoint, partial(self.submit, job))
        if self.jobs >= self._limits.jobs:
            raise QueueFull(self.kind, self.speeds.job_s * self.jobs / self._limits.concurrency)
        pending = self._jobs.add(job)
        wake_s = self.wake_s(job.checkpoint)
        self._load(self._checkpoints.cold((job.checkpoint,)))
        if life.worker_of(self._state) is None:  # the next worker gets it
            pending.events.put_nowait(Queued())
        else:
            self._send(Submit(job))
        return JobEvents(cast(asyncio.Queue[EventT], pending.events), wake_s)

    def cancel(self, job_id: str) -> None:
        """Stop a job within one step. Ids that are not pending are ignored."""
        self._jobs.cancel(job_id, is_sent=life.worker_of(self._state) is not None)

    def _move(self, event: life.Event) -> None:
        self._state = life.after(self._state, event)

    def _send(self, message: ToWorker) -> None:
        if (worker := life.worker_of(self._state)) is not None:
            worker.transport.send([message])

    def _load(self, specs: Sequence[Spec]) -> None:
        """Load checkpoints on a worker that is needed now: it comes back if it sleeps, and it is not idle."""
        self._stop_idle_timer()
        if isinstance(state := self._state, life.AsleepOnHost | life.AsleepOnDisk):
            log.info("worker wakes", worker=self.name)
            self.sleep_wanted = None
            self._move("wake")
            state.worker.woken.set()
        if specs and not life.is_down(self._state):  # else the next worker loads all that is preloaded
            self._checkpoints.loading |= dict.fromkeys(specs)
            self._send(Load(tuple(specs)))

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _request_sleep(self, place: life.Place) -> None:
        """Sleep as soon as nothing needs the worker. From the host's memory weights can still leave for the disk."""
        if self.status.place not in {place, "disk"}:
            self.sleep_wanted = place
            self._sleep_if_idle()

    def _sleep_if_idle(self) -> None:
        """Sleep if that is wanted and nothing needs the worker, or count the time until then."""
        state, place, idle_s = self._state, self.sleep_wanted, self._limits.idle_unload_s
        busy = not self._jobs.are_settled or not self._checkpoints.are_settled
        if busy or not self.can_sleep or not isinstance(state, life.Up | life.AsleepOnHost):
            self._stop_idle_timer()
        elif place is not None:
            self._stop_idle_timer()
            self._fall_asleep(state.worker, place)
        elif isinstance(state, life.Up) and idle_s is not None and self._idle_timer is None:
            self._idle_timer = asyncio.get_running_loop().call_later(idle_s, self._request_sleep, "disk")

    def _fall_asleep(self, worker: life.Worker, place: life.Place) -> None:
        log.info("worker sleeps", worker=self.name, place=place)
        self.sleep_wanted = None
        self._checkpoints.slept(place)
        worker.off_device.clear()
        worker.woken.clear()
        if place == "host":
            self._move("sleep on host")
            worker.transport.send([Sleep()])
        else:
            self._move("sleep on disk")
            worker.transport.kill()

    async def _supervise(self) -> None:
        pause_s = 0.0
        while True:
            began = time.monotonic()
            try:
                await self._run_worker(began)
            except OSError as error:  # or a machine of the cluster that is away
                log.error("no worker", worker=self.name, reason=str(error), jobs_lost=self.jobs)  # noqa: TRY400
                self._lose(str(error))
            except Exception as error:  # such as no memory for a process, or no descriptor: retry
                log.exception("worker failed", worker=self.name, jobs_lost=self.jobs)
                self._lose(str(error) or type(error).__name__)
            match self._state:
                case life.AsleepOnDisk(worker):
                    await worker.woken.wait()
                case life.Coming(wakes=False):
                    self.restarts += 1
                    pause_s = life.restart_pause_s(pause_s, time.monotonic() - began)
                    await asyncio.sleep(pause_s)

    async def _run_worker(self, began: float) -> None:
        """Start one worker and handle its messages until it ends."""
        transport = await self._launcher.open(self.device_choice)
        worker, pid = life.Worker(transport, began), transport.pid
        self._move(worker)
        watch = asyncio.create_task(self._watchdog.watch(transport, self.name))
        late = asyncio.get_running_loop().call_later(LATE_S, self._tell_late)
        try:
            self._send_all()
            while messages := await transport.receive():
                if life.worker_of(self._state) is worker:  # else it was told to end
                    self._receive(worker, messages)
            reason = worker.no_device or await transport.end_reason()
            if self._watchdog.stuck is not None:
                worker.ending = f"it was killed: {self._watchdog.stuck}"
        finally:
            watch.cancel()
            late.cancel()
            await transport.close()
            worker.off_device.set()
        if life.worker_of(self._state) is worker:
            if not isinstance(self._state, life.AsleepOnHost):
                why = worker.ending or reason
                log.warning("worker died", worker=self.name, pid=pid, reason=why, jobs_lost=self.jobs)
            self._lose(reason, has_device=worker.no_device is None)

    def _tell_late(self) -> None:
        if isinstance(self._state, life.Starting):
            log.warning("a worker does not come up", worker=self.name, reason=LATE)

    def _send_all(self) -> None:
        """Tell a new worker what it may have, what to load and which jobs wait for it."""
        if self._checkpoints.retained:
            self._send(UnloadExcept(self._checkpoints.retained))
        specs = self._checkpoints.first_loads(wakes=self.status.takes_jobs)
        for spec in filter(self.failures.ended_workers, specs):
            self._record_checkpoint(
                CheckpointState(spec, "failed", "two workers in a row have ended while they loaded it")
            )
        if specs := tuple(self._checkpoints.loading):
            self._send(Load(specs))
        for pending in list(self._jobs.pending.values()):
            self._send(Submit(pending.job))

    def _receive(self, worker: life.Worker, messages: Sequence[FromWorker]) -> None:
        self._watchdog.last_message_at = time.monotonic()
        for message in messages:
            self._handle(worker, message)
        if self.ready:
            self._became_ready.set()
        match self._state:
            case life.Up(wakes=True) if not self._checkpoints.loading:
                self._move("loaded")
        self._sleep_if_idle()

    def _handle(self, worker: life.Worker, message: FromWorker) -> None:
        match message:
            case JobEvent():
                self._jobs.deliver(message.job_id, message.event)
            case CheckpointState():
                self._record_checkpoint(message)
            case Pong():
                worker.memory = message.memory
                if message.memory.gpu is not None:
                    self.failures.note_memory(message.memory.gpu)
            case CachedCheckpoints():
                worker.cached_checkpoints = message
            case Sharing():
                worker.sharing = message
            case Asleep():
                worker.off_device.set()
            case NoGpu():
                worker.no_device = message.reason
            case Ending():
                worker.ending = message.reason
            case Ready():
                self._move(message)
                self._start_s = time.monotonic() - worker.began
                self._record_ready(worker, message)

    def _record_ready(self, worker: life.Worker, message: Ready) -> None:
        if message.is_gpu:
            self.device_choice = "cuda"  # a GPU that is lost is not replaced by the CPU
        log.info("worker ready", worker=self.name, device=message.device, pid=worker.transport.pid)
        worker.problems = message.problems
        for problem in message.problems:
            log.warning("the machine has a problem", worker=self.name, problem=problem)

    def _record_checkpoint(self, state: CheckpointState) -> None:
        self._log_checkpoint(state)
        if state.state == "loaded":
            self._watchdog.record_loaded(state.spec)
        self._checkpoints.record(state)

    def _record_job(self, moved: PendingJob, event: AnyEvent) -> None:
        """Record an event of a job, with what it says of its checkpoint: it could not be loaded, or can be again."""
        self._watchdog.record_event(moved, event)
        spec = moved.job.checkpoint
        if isinstance(event, Failed) and event.code == "checkpoint_failed" and event.movable is not None:
            state = CheckpointState(spec, "failed", event.detail.partition("\n")[0])
            self._log_checkpoint(state)
            self._checkpoints.fail(spec, state.detail)
        elif isinstance(event, Failed) and event.movable == "larger" and isinstance(moved.job, ImageJob):
            self.failures.remember(spec, pixels(moved.job))
        elif isinstance(event, Finished) and isinstance(moved.job, ImageJob):
            self.failures.forget_sizes(spec, pixels(moved.job))
        elif isinstance(event, Started) and self._checkpoints.is_mended(spec):
            self._load((spec,))  # it may be another file than the one that failed: what can it do?

    def _log_checkpoint(self, state: CheckpointState) -> None:
        reported = {(known.spec.name, known.state, known.detail) for known in self.checkpoints.values()}
        if (state.spec.name, state.state, state.detail) not in reported:  # several models may share one
            log.info(
                "checkpoint", worker=self.name, name=state.spec.name, file=state.spec.source, state=state.state,
                detail=state.detail,
            )  # fmt: skip

    def _lose(self, reason: str, *, has_device: bool = True) -> None:
        """Let the next worker come in place of one that died or could not be started, and fail its jobs. One that dies
        in its sleep had none, and stays away until it is needed."""
        worker, was_up = life.worker_of(self._state), isinstance(self._state, life.Up)
        self._move(life.Lost((worker and worker.ending) or reason))
        if isinstance(self._state, life.AsleepOnDisk):
            self._checkpoints.slept("disk")
            return
        for spec in self._loads_now() if was_up else ():
            self.failures.remember(spec, ends_worker=True)
        # One that had its device may have been ended by a job whose start it could not tell any more
        movable: Movable | None = None if has_device else "anywhere"
        self._fail_jobs(death_message(self.kind, reason, has_device=has_device), movable)

    def _loads_now(self) -> list[Spec]:
        """Return the checkpoints that the worker may be loading: the first that it was told, and those of jobs."""
        loading = [*list(self._checkpoints.loading)[:1], *self._jobs.waiting_for]
        return [spec for spec in dict.fromkeys(loading) if not self._checkpoints.is_loaded(spec)]

    def _fail_jobs(self, message: str, movable: Movable | None = None) -> None:
        self._stop_idle_timer()
        self.sleep_wanted = None
        self._checkpoints.lose(self.kind)
        self._jobs.fail_all(message, movable)
