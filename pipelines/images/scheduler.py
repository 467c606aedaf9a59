"""Which run has the device next. Runs take turns: a turn lasts from one forward pass to the next.

The lowest rank goes first (pipelines.images.fairness): the least work left, so that a draft overtakes a 4K picture
between two of its steps, and keys in turn. A run that has waited for `OVERDUE_AFTER_TURNS` of its own turns is overdue
and goes before that, but never two overdue runs in a row while another one waits. So under any load each waiting run
gets a share of the device; the lowest rank gets half.

A run that waits for a forward pass says so with a `ForwardRequest`. Whoever gets the turn may compute the requests of
others with its own (pipelines.images.merging); each of those then goes on before the next pass begins, so that all of
them meet there again. A run that has still to encode its prompt goes before the pass that it would join.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.images.fairness import RecentUse, rank
from pipelines.images.row_limits import PassShape

OVERDUE_AFTER_TURNS = 8.0  # of waiting: so a run gets a ninth of the device at least
INITIAL_TURN_S = 0.25  # assumed for a run until its first turn has been measured
SMOOTHING = 0.3  # weight of a new turn


@dataclass(slots=True, eq=False)
class ForwardRequest:
    """A forward pass that a run waits for. `key` is equal for passes that can be one; None for one that can't."""

    arguments: Mapping[str, Any]
    key: Hashable | None = None
    done: bool = False  # `output` is there, or `error`
    output: Any = None
    error: Exception | None = None
    merged: bool = False  # computed with others


@dataclass(slots=True, eq=False)
class DeviceTurn:
    """One run's state at the scheduler. `remaining_s` is its owner's estimate of the device time it still needs."""

    remaining_s: float
    owner: str = ""  # the API key
    turn_s: float = INITIAL_TURN_S  # duration of its latest turns, smoothed
    device_s: float = 0.0  # used so far
    since: float = 0.0  # it has had the device, or waited for it, since then
    shape: PassShape | None = None  # of the pipeline call it is in: runs of equal shape are expected to share passes
    in_prologue: bool = True  # of that call: it encodes prompts and pictures, up to its first forward pass
    in_epilogue: bool = False  # of a forward pass, which has been measured: the scheduler's step, the callback
    request: ForwardRequest | None = None
    merged: bool = False  # a forward pass was shared
    ready: threading.Event = field(default_factory=threading.Event)

    def device_s_at(self, now: float) -> float:
        """Device time up to now, for the run that has the device."""
        return self.device_s + now - self.since

    def overdue(self, now: float) -> float:
        """Seconds that it has waited too long; negative while it has not."""
        return now - self.since - OVERDUE_AFTER_TURNS * self.turn_s


def in_order(waiting: Sequence[DeviceTurn], use: RecentUse, now: float) -> list[DeviceTurn]:
    """The lowest rank first; among equals the one that has waited longest."""
    by_wait = sorted(waiting, key=lambda turn: turn.since)
    used = {turn.owner: use.of(turn.owner, now) for turn in waiting}
    return [turn for _, turn in rank(by_wait, lambda turn: turn.owner, lambda turn: turn.remaining_s, used)]


def select_next(waiting: Sequence[DeviceTurn], use: RecentUse, now: float, *, allow_overdue: bool) -> DeviceTurn:
    """The next turn. `allow_overdue` is false right after an overdue run has had its turn."""
    if served := [turn for turn in waiting if turn.request is not None and turn.request.done]:
        return served[0]
    if allow_overdue and (overdue := [turn for turn in waiting if turn.overdue(now) > 0]):
        selected = max(overdue, key=lambda turn: turn.overdue(now))
    else:
        selected = in_order(waiting, use, now)[0]
    if selected.request is not None and selected.request.key is not None:
        for turn in waiting:
            if turn.in_prologue and turn.request is None and turn.shape == selected.shape:
                return turn
    return selected


class DeviceScheduler:
    """Gives the device to one run at a time. Each run calls from a thread of its own.

    `fence` is called before a forward pass: on a GPU it waits until the device has caught up, because kernels are
    launched asynchronously. `on_release` is called by a run that gives the device to another, or back.
    """

    def __init__(
        self,
        fence: Callable[[], None] = lambda: None,
        on_release: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._fence = fence
        self._on_release = on_release
        self._lock = threading.Lock()
        self._waiting: list[DeviceTurn] = []
        self._holder: DeviceTurn | None = None
        self._allow_overdue = True
        self._current = threading.local()
        self._use = RecentUse()
        self._last_pass: Mapping[DeviceTurn, float] = {}  # who shared it, and the part of each

    @property
    def current(self) -> DeviceTurn | None:
        """The calling thread's turn; None for a thread that holds nothing."""
        turn: DeviceTurn | None = getattr(self._current, "turn", None)
        return turn

    @property
    def contended(self) -> bool:
        """Whether a run waits for the device."""
        with self._lock:
            return bool(self._waiting)

    def used_s(self, owner: str) -> float:
        """Device seconds that a key has used lately."""
        with self._lock:
            return self._use.of(owner, self.clock())

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
        turn = self.current
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
        turn = self.current
        if turn is None:
            return
        if not self._any_served():
            self._catch_up(turn)
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

    def wait_for(self, request: ForwardRequest) -> None:
        """`yield_point` before a forward pass. On return the request is done, or it is the calling thread's turn to
        compute it."""
        turn = self.current
        if turn is not None:
            turn.request, turn.in_prologue = request, False
        self.yield_point()

    def companions(self, request: ForwardRequest, most: int) -> list[ForwardRequest]:
        """Requests of waiting runs with the key of `request`, the next ones in order, at most `most`."""
        with self._lock:
            waiting = in_order(self._waiting, self._use, self.clock())
        same = [turn.request for turn in waiting if turn.request is not None and turn.request.key == request.key]
        return [other for other in same if not other.done][: max(0, most)]

    def record_pass(self, requests: Sequence[ForwardRequest], elapsed_s: float) -> None:
        """The calling thread has computed `requests` in one pass: each of their runs has used an equal part of it."""
        own = self.current
        if own is None:
            return
        part = 1 / len(requests)
        with self._lock:
            others = [turn for turn in self._waiting if turn.request in requests]
            own.since += elapsed_s * (1 - part)
            now = self.clock()
            for turn in others:
                self._use_device(turn, elapsed_s * part, now)
                turn.since = now
            self._last_pass = dict.fromkeys([own, *others], part)
            for turn in self._last_pass:
                turn.turn_s += SMOOTHING * (elapsed_s - turn.turn_s)
                turn.in_epilogue = True

    def _any_served(self) -> bool:
        with self._lock:
            return any(turn.request is not None and turn.request.done for turn in self._waiting)

    def _catch_up(self, turn: DeviceTurn) -> None:
        """Wait for the device. The wait is for the last pass, so those who shared it share the time."""
        began = self.clock()
        self._fence()
        waited_s = self.clock() - began
        with self._lock:
            turn.since += waited_s
            for sharer, part in (self._last_pass or {turn: 1.0}).items():
                self._use_device(sharer, waited_s * part, self.clock())

    def _give_up(self, turn: DeviceTurn) -> None:
        self._on_release()
        with self._lock:
            self._account(turn)
            self._holder = None
            self._grant_next()

    def _wait(self, turn: DeviceTurn) -> None:
        with self._lock:
            turn.since = self.clock()
            turn.ready.clear()
            self._waiting.append(turn)
            if self._holder is None:
                self._grant_next()
        turn.ready.wait()

    def _account(self, turn: DeviceTurn) -> None:
        now = self.clock()
        elapsed_s = now - turn.since
        self._use_device(turn, elapsed_s, now)
        if not turn.in_epilogue:
            turn.turn_s += SMOOTHING * (elapsed_s - turn.turn_s)
        turn.in_epilogue = False
        turn.since = now

    def _use_device(self, turn: DeviceTurn, seconds: float, now: float) -> None:
        turn.device_s += seconds
        self._use.add(turn.owner, seconds, now)

    def _grant_next(self) -> None:
        if not self._waiting:
            self._use.forget_idle(self.clock())
            return
        now = self.clock()
        selected = select_next(self._waiting, self._use, now, allow_overdue=self._allow_overdue)
        self._allow_overdue = not (self._allow_overdue and selected.overdue(now) > 0)
        self._waiting.remove(selected)
        self._holder = selected
        selected.since = now
        selected.ready.set()
