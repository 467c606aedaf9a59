"""Which run has the device next. Runs take turns: a turn lasts from one forward pass to the next.

The run with the least work left goes first, so that a draft overtakes a 4K picture between two of its steps. A run that
has waited for `OVERDUE_AFTER_TURNS` of its own turns is overdue and goes before that, but never two overdue runs in a
row while a shorter one waits. So under any load each waiting run gets a share of the device; the shortest gets half.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

OVERDUE_AFTER_TURNS = 8.0  # of waiting: so a run gets a ninth of the device at least
INITIAL_TURN_S = 0.25  # assumed for a run until its first turn has been measured
SMOOTHING = 0.3  # weight of a new turn


@dataclass(slots=True, eq=False)
class DeviceTurn:
    """One run's state at the scheduler. `remaining_s` is its owner's estimate of the device time it still needs."""

    remaining_s: float
    turn_s: float = INITIAL_TURN_S  # duration of its latest turns, smoothed
    device_s: float = 0.0  # used so far
    since: float = 0.0  # it has had the device, or waited for it, since then
    ready: threading.Event = field(default_factory=threading.Event)

    def device_s_at(self, now: float) -> float:
        """Device time up to now, for the run that has the device."""
        return self.device_s + now - self.since

    def overdue(self, now: float) -> float:
        """Seconds that it has waited too long; negative while it has not."""
        return now - self.since - OVERDUE_AFTER_TURNS * self.turn_s


def select_next(waiting: Sequence[DeviceTurn], now: float, *, allow_overdue: bool) -> DeviceTurn:
    """The next turn. `allow_overdue` is false right after an overdue run has had its turn."""
    if allow_overdue and (overdue := [turn for turn in waiting if turn.overdue(now) > 0]):
        return max(overdue, key=lambda turn: turn.overdue(now))
    return min(waiting, key=lambda turn: (turn.remaining_s, turn.since))


class DeviceScheduler:
    """Gives the device to one run at a time. Each run calls from a thread of its own.

    `fence` is called at the end of a turn: on a GPU it waits until the device has caught up, because kernels are
    launched asynchronously. `on_release` is called by a run that gives the device to another, or back.
    """

    def __init__(
        self,
        fence: Callable[[], None] = lambda: None,
        on_release: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fence = fence
        self._on_release = on_release
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[DeviceTurn] = []
        self._holder: DeviceTurn | None = None
        self._allow_overdue = True
        self._current = threading.local()

    @contextlib.contextmanager
    def acquire(self, turn: DeviceTurn) -> Iterator[None]:
        """Hold the device, except for the pauses at each `yield_point` and in `release`."""
        self._wait(turn)
        self._current.turn = turn
        try:
            yield
        finally:
            self._current.turn = None
            self._give_up(turn)

    @contextlib.contextmanager
    def release(self) -> Iterator[None]:
        """The calling thread's turn ends while it works on the host, and it waits for its next one afterwards. Threads
        that hold nothing go on."""
        turn: DeviceTurn | None = getattr(self._current, "turn", None)
        if turn is None:
            yield
            return
        self._give_up(turn)
        try:
            yield
        finally:
            self._wait(turn)

    def yield_point(self, *_: Any) -> None:
        """End the calling thread's turn and wait for its next one. Threads that hold nothing return at once."""
        turn: DeviceTurn | None = getattr(self._current, "turn", None)
        if turn is None:
            return
        self._fence()
        with self._lock:
            self._account(turn)
            if not self._waiting:
                return
            self._on_release()
            self._holder = None
            turn.ready.clear()
            self._waiting.append(turn)
            self._grant_next()
        turn.ready.wait()

    def _give_up(self, turn: DeviceTurn) -> None:
        self._on_release()
        with self._lock:
            self._account(turn)
            self._holder = None
            self._grant_next()

    def _wait(self, turn: DeviceTurn) -> None:
        with self._lock:
            turn.since = self._clock()
            turn.ready.clear()
            self._waiting.append(turn)
            if self._holder is None:
                self._grant_next()
        turn.ready.wait()

    def _account(self, turn: DeviceTurn) -> None:
        now = self._clock()
        elapsed_s = now - turn.since
        turn.device_s += elapsed_s
        turn.turn_s += SMOOTHING * (elapsed_s - turn.turn_s)
        turn.since = now

    def _grant_next(self) -> None:
        if not self._waiting:
            return
        now = self._clock()
        selected = select_next(self._waiting, now, allow_overdue=self._allow_overdue)
        self._allow_overdue = not (self._allow_overdue and selected.overdue(now) > 0)
        self._waiting.remove(selected)
        self._holder = selected
        selected.since = now
        selected.ready.set()
