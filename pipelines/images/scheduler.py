"""Who has the device next. Runs take turns: a turn lasts from one forward pass to the next.

The run with the least work left goes first, so that a draft passes a 4K picture between two of its steps. A run that
has waited `PATIENCE` of its own turns is overdue and goes before that, but never two overdue ones in a row while a
shorter run waits: whatever is asked of the device, each waiting run gets a share of it, and the shortest gets half.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 8.0  # of its own turns that a run waits before it is overdue: it gets a ninth of the device at least
FIRST_TURN_S = 0.25  # how long a turn takes, before one has been seen


@dataclass(slots=True, eq=False)
class Turn:
    """One run's place at the device. `remaining_s` is its owner's estimate of the device time it still needs."""

    remaining_s: float
    turn_s: float = FIRST_TURN_S  # of its latest turns, smoothed
    device_s: float = 0.0  # that it has had
    since: float = 0.0  # it has had the device, or waited for it, since then
    ready: threading.Event = field(default_factory=threading.Event)

    def device_s_at(self, now: float) -> float:
        """Device time up to now, for the run that has it."""
        return self.device_s + now - self.since

    def overdue(self, now: float) -> float:
        """For how long it has waited beyond its patience; negative while it has not."""
        return now - self.since - PATIENCE * self.turn_s


def choose(waiting: Sequence[Turn], now: float, *, overdue_next: bool) -> Turn:
    """Whose turn it is. `overdue_next` is false right after an overdue run has had its turn."""
    if overdue_next and (late := [turn for turn in waiting if turn.overdue(now) > 0]):
        return max(late, key=lambda turn: turn.overdue(now))
    return min(waiting, key=lambda turn: (turn.remaining_s, turn.since))


class Turns:
    """The device, held by one run at a time. Each run calls from a thread of its own.

    `fence` is called between turns by the run that ends one: on a GPU it waits until the device has caught up, since
    what a turn launched goes on after it. `leave` is called by a run that gives the device to another, or back.
    """

    def __init__(
        self,
        fence: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fence = fence
        self._leave = leave
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[Turn] = []
        self._holder: Turn | None = None
        self._overdue_next = True
        self._current = threading.local()

    @contextlib.contextmanager
    def hold(self, turn: Turn) -> Iterator[None]:
        """Have the device from the first turn to the last, passing it on at each `boundary`."""
        self._wait(turn)
        self._current.turn = turn
        try:
            yield
        finally:
            self._current.turn = None
            self._leave()
            with self._lock:
                self._account(turn)
                self._holder = None
                self._hand_over()

    def boundary(self, *_: Any) -> None:
        """Between two turns of the calling thread's run: another may go first. Threads that hold nothing pass."""
        turn: Turn | None = getattr(self._current, "turn", None)
        if turn is None:
            return
        self._fence()
        with self._lock:
            self._account(turn)
            if not self._waiting:
                return
            self._leave()
            self._holder = None
            turn.ready.clear()
            self._waiting.append(turn)
            self._hand_over()
        turn.ready.wait()

    def _wait(self, turn: Turn) -> None:
        with self._lock:
            turn.since = self._clock()
            turn.ready.clear()
            self._waiting.append(turn)
            if self._holder is None:
                self._hand_over()
        turn.ready.wait()

    def _account(self, turn: Turn) -> None:
        now = self._clock()
        took_s = now - turn.since
        turn.device_s += took_s
        turn.turn_s += 0.3 * (took_s - turn.turn_s)
        turn.since = now

    def _hand_over(self) -> None:
        if not self._waiting:
            return
        now = self._clock()
        chosen = choose(self._waiting, now, overdue_next=self._overdue_next)
        self._overdue_next = not (self._overdue_next and chosen.overdue(now) > 0)
        self._waiting.remove(chosen)
        self._holder = chosen
        chosen.since = now
        chosen.ready.set()
