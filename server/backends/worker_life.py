"""The life of a host's worker: its states, each with what it has, and the only moves between them.

A worker sleeps when it is told to, or when nothing was asked of it for a while, and never before its jobs have ended.
To the disk: its process ends, and with it all that it had of the device and of the host's memory. To the host: its
process stays, with its weights in the host's memory, from where they are back sooner. Asleep it takes jobs as ever; the
first one wakes it. A worker `wakes` until it has loaded what that job draws or answers with, nothing else.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Literal

from pipelines.protocol.messages import CachedCheckpoints, Ready, Sharing, WorkerMemory
from server.backends.transport import Transport

HEALTHY_UPTIME_S: Final = 30.0  # after which a death is not counted as a failed start
MAX_PAUSE_S: Final = 10.0


@dataclass(slots=True, eq=False)
class Worker:
    """A worker's process from its spawning to its end, and the latest that it has sent of itself."""

    transport: Transport
    began: float  # when it was asked for, by the monotonic clock
    memory: WorkerMemory | None = None  # None until its first heartbeat
    cached_checkpoints: CachedCheckpoints | None = None  # an image worker's weights in memory
    sharing: Sharing = field(default_factory=Sharing)  # of an engine that other servers use too
    no_device: str | None = None  # why it can't compute
    ending: str | None = None  # why it ends itself
    problems: tuple[str, ...] = ()  # of its machine, in sentences; it goes on
    off_device: asyncio.Event = field(default_factory=asyncio.Event)  # asleep: what it had on the device is free
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # after that: it, or another one, is needed again


@dataclass(frozen=True, slots=True)
class Stopped:
    """There is no worker, and none comes."""


@dataclass(frozen=True, slots=True)
class Coming:
    """There is no worker yet: one is spawned, after a pause if the one before died. `problem` says why it did."""

    problem: str | None = None
    wakes: bool = False


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker imports its libraries."""

    worker: Worker
    problem: str | None
    wakes: bool


@dataclass(frozen=True, slots=True)
class Up:
    """A worker loads checkpoints and runs jobs. `device` is for people."""

    worker: Worker
    device: str
    wakes: bool


@dataclass(frozen=True, slots=True)
class AsleepOnHost:
    """A worker's weights are in the host's memory, or on their way there."""

    worker: Worker
    device: str


@dataclass(frozen=True, slots=True)
class AsleepOnDisk:
    """The last worker has ended, or is about to: it was killed."""

    worker: Worker
    device: str


State = Stopped | Coming | Starting | Up | AsleepOnHost | AsleepOnDisk
Place = Literal["host", "disk"]  # where the weights are while a worker sleeps


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker has died, or none could be spawned."""

    reason: str


# A Worker that was spawned; Ready of one that has imported its libraries
Event = Literal["start", "loaded", "sleep on host", "sleep on disk", "wake", "stop"] | Worker | Ready | Lost


class WrongMove(Exception):
    """An event that the present state does not have."""


def after(state: State, event: Event) -> State:
    """Return the state after an event. Raises WrongMove."""
    match state, event:
        case Stopped(), "start":
            return Coming()
        case Coming(problem, wakes), Worker() as worker:
            return Starting(worker, problem, wakes)
        case Starting(worker, wakes=wakes), Ready(device):
            return Up(worker, device, wakes)
        case Up(worker, device), "loaded":
            return Up(worker, device, wakes=False)
        case Up(worker, device), "sleep on host":
            return AsleepOnHost(worker, device)
        case (Up(worker, device), "sleep on disk") | (AsleepOnHost(worker, device), "sleep on disk" | Lost()):
            return AsleepOnDisk(worker, device)
        case AsleepOnHost(worker, device), "wake":
            return Up(worker, device, wakes=True)
        case AsleepOnDisk(), "wake":
            return Coming(wakes=True)
        case Coming() | Starting() | Up(), Lost(reason):
            return Coming(reason)
        case AsleepOnDisk(), Lost():  # in its end
            return state
        case _, "stop":
            return Stopped()
    raise WrongMove(f"{event!r} of a worker that is {type(state).__name__}")


def is_down(state: State) -> bool:
    """Return whether there is no worker that could load a checkpoint, nor one that wakes."""
    return isinstance(state, Stopped) or (isinstance(state, Coming) and not state.wakes)


def worker_of(state: State) -> Worker | None:
    """Return the worker that messages are exchanged with; None while there is none."""
    return state.worker if isinstance(state, Starting | Up | AsleepOnHost) else None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What others see of a worker. `takes_jobs`: it is up, or sleeps, or comes back from that; `place` is where its
    weights are in a sleep; `device`, for people, is where it is up, or will be again after a sleep."""

    sleep: Literal["awake", "asleep", "waking"]
    takes_jobs: bool
    place: Place | None
    device: str | None
    problem: str | None  # why the last one died, while none is up after it; of one that is up, what its machine lacks
    pid: int | None  # of its process, on this machine
    memory: WorkerMemory | None
    cached_checkpoints: CachedCheckpoints | None
    sharing: Sharing


def status_of(state: State) -> WorkerStatus:
    """Return what others see of a worker in this state."""
    worker = worker_of(state)
    of_machine = " ".join(worker.problems) or None if worker else None
    asleep = isinstance(state, AsleepOnHost | AsleepOnDisk)
    wakes = isinstance(state, Coming | Starting | Up) and state.wakes
    return WorkerStatus(
        "asleep" if asleep else "waking" if wakes else "awake",
        asleep or wakes or isinstance(state, Up),
        None if not asleep else "host" if worker else "disk",
        state.device if isinstance(state, Up | AsleepOnHost | AsleepOnDisk) else None,
        state.problem if isinstance(state, Coming | Starting) else of_machine,
        worker.transport.pid if worker else None,
        worker.memory if worker else None,
        worker.cached_checkpoints if worker else None,
        worker.sharing if worker else Sharing(),
    )


def restart_pause_s(last_pause_s: float, uptime_s: float) -> float:
    """Return the pause after a worker that lived so long: it doubles while workers die soon after their start."""
    return 0.0 if uptime_s > HEALTHY_UPTIME_S else min(MAX_PAUSE_S, 2 * last_pause_s + 0.25)
