"""Whether a worker sleeps: its weights have left the device, until a job needs them again.

A worker sleeps when it is told to, or when nothing was asked of it for a while, and never before its jobs have ended.
To the disk: its process ends, and with it all that it had of the device and of the host's memory. To the host: its
process stays, with its weights in the host's memory, from where they are back sooner. Asleep it takes jobs as ever;
the first one wakes it, and what that job draws or answers with is loaded, nothing else.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final, Literal

import structlog

from pipelines.protocol.messages import CheckpointState, Spec

log = structlog.stdlib.get_logger("darkroom.engine")

Place = Literal["host", "disk"]
State = Literal["awake", "asleep", "waking"]
FIRST_START_S: Final = 15.0  # assumed for a worker's start until one was measured
FIRST_LOAD_S: Final = 20.0  # assumed for loading a checkpoint until it has been loaded
RESTORE_SHARE: Final = 0.1  # of the time from the disk that weights take from the host's memory


class WorkerSleep:
    """The sleep of one host's workers. `is_idle` says whether the worker is up and nothing needs it; `begin` makes it
    sleep. After `idle_s` without work it sleeps to the disk; None for never. All calls are made on one event loop."""

    def __init__(
        self, name: str, idle_s: float | None, is_idle: Callable[[], bool], begin: Callable[[Place], None]
    ) -> None:
        self._name = name
        self._idle_s = idle_s
        self._is_idle = is_idle
        self._begin = begin
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: Place | None = None  # as soon as it is idle
        self._waking = False
        self._started_at = 0.0
        self._start_s = FIRST_START_S
        self._cold: dict[Spec, Place] = {}  # served, and to be loaded by the first job that needs it
        self.place: Place | None = None  # where the weights are while it sleeps
        self.gone = asyncio.Event()  # what a sleeping worker had on the device is free
        self.woken = asyncio.Event()

    @property
    def state(self) -> State:
        """Return whether the worker sleeps, comes back, or is awake."""
        return "asleep" if self.place is not None else "waking" if self._waking else "awake"

    @property
    def sleep_requested(self) -> bool:
        """Return whether it will sleep as soon as its jobs have ended."""
        return self._wanted is not None

    def is_cold(self, spec: Spec) -> bool:
        """Return whether a checkpoint has to be loaded again since the worker slept."""
        return spec in self._cold

    def ask(self, place: Place) -> None:
        """Sleep as soon as nothing needs the worker. From the host's memory weights can still leave for the disk."""
        if self.place not in {place, "disk"}:
            self._wanted = place
            self.update()

    def update(self) -> None:
        """Sleep, or count the time until then, after anything has changed."""
        if not self._is_idle():
            self._stop_timer()
        elif self._wanted is not None:
            self._fall_asleep()
        elif self.place is None and self._idle_s is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.ask, "disk")

    def slept(self, served: Collection[Spec], place: Place) -> None:
        """Record that the worker sleeps, with these checkpoints."""
        self.place, self._waking = place, False
        self._cold.update(dict.fromkeys(served, place))
        self.gone.clear()
        self.woken.clear()

    def wake(self) -> None:
        """Record that the worker is needed. If it is awake, it no longer counts as idle."""
        self._stop_timer()
        if self.place is not None:
            log.info("worker wakes", worker=self._name)
            self._wanted, self.place, self._waking = None, None, True
            self.woken.set()

    def cancel_sleep(self) -> None:
        """Withdraw a request to sleep, if the worker is still awake."""
        self._wanted = None

    def record_warm(self, spec: Spec) -> None:
        """Record that a checkpoint is loaded, or that it can't be."""
        self._cold.pop(spec, None)

    def record_awake(self) -> None:
        """Record that a woken worker is up, with all that it was to load."""
        self._waking = False

    def record_starting(self) -> None:
        """Record that a worker's process starts."""
        self._started_at = time.monotonic()

    def record_started(self) -> None:
        """Record that a worker's process is up."""
        self._start_s = time.monotonic() - self._started_at

    def record_death(self) -> None:
        """Record that a worker died: the next one loads everything."""
        self._stop_timer()
        self._cold.clear()
        self._wanted, self.place, self._waking = None, None, False

    def keep(self, served: Collection[Spec]) -> None:
        """Forget all other checkpoints than these."""
        self._cold = {spec: place for spec, place in self._cold.items() if spec in served}

    def wake_s(self, known: CheckpointState | None, *, up: bool) -> float:
        """Return how long it takes until a checkpoint is loaded again; 0 if it is. `up`: the process is there."""
        place = self._cold.get(known.spec) if known is not None else None
        if place is None or known is None:
            return 0.0
        load_s = FIRST_LOAD_S if known.load_s is None else known.load_s
        return load_s * RESTORE_SHARE if up and place == "host" else load_s if up else self._start_s + load_s

    def _fall_asleep(self) -> None:
        place, self._wanted = self._wanted, None
        self._stop_timer()
        if place is not None:
            log.info("worker sleeps", worker=self._name, place=place)
            self._begin(place)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
