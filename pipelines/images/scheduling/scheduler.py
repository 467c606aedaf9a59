"""Which run has the device next. Runs take turns: a turn lasts from one forward pass to the next.

The order is that of fairness.py: the least work left goes first, so that a draft overtakes a 4K image between two of
its steps, and keys in turn; but no run ends much later than if all had shared the device equally.

A run that waits for a forward pass says so with a `ForwardRequest`. Whoever gets the turn may compute the requests of
others with its own; each of those then goes on before the next pass begins, so that all of them meet there again. A run
that has still to encode its prompt goes before the pass that it would join.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.images.scheduling.fairness import RecentUse, Shares, in_order
from pipelines.images.scheduling.row_limits import PassShape
from pipelines.protocol.tiers import ServiceTier


class DeviceTimeline(Protocol):
    """Work that is launched on the device, in order. A GPU queues it; a CPU has done it when the launch returns."""

    def catch_up(self) -> None:
        """Block until at most one turn's work is queued: a run that launched more would keep others from the device."""

    def mark(self) -> Callable[[], None]:
        """Mark the work that has been launched, and return a function that blocks until the device has computed it."""


class Synchronous:
    """The timeline of a device that has done its work when a launch returns."""

    def catch_up(self) -> None:
        """Do nothing: no work is queued."""

    def mark(self) -> Callable[[], None]:
        """Return a function that does not block."""
        return lambda: None


class Preempted(Exception):
    """The run gives up its place before its first turn."""


@dataclass(slots=True, eq=False)
class ForwardRequest:
    """A forward pass that a run waits for. `key` is equal for passes that can be one; None for one that can't."""

    arguments: Mapping[str, Any]
    key: Hashable | None = None
    room: int = 1  # how many may be one pass
    done: bool = False  # `output` is there, or `error`
    output: Any = None
    error: Exception | None = None
    merged: bool = False  # computed with others


@dataclass(slots=True, eq=False)
class DeviceTurn:
    """One run's state at the scheduler. `remaining_s` is its owner's estimate of the device time it still needs, less
    what it has used since."""

    remaining_s: float
    owner: str = ""  # the API key
    owed_s: float = 0.0  # its equal share of the device, since it has been waiting (fairness.py)
    device_s: float = 0.0  # used so far
    since: float = 0.0  # it has had the device, or waited for it, since then
    shape: PassShape | None = None  # of the pipeline call it is in: runs of equal shape are expected to share passes
    in_prologue: bool = True  # of that call: it encodes prompts and images, up to its first forward pass
    request: ForwardRequest | None = None
    merged: bool = False  # a forward pass was shared
    preempted: bool = False  # it shall not begin
    tier: ServiceTier = "default"
    ready: threading.Event = field(default_factory=threading.Event)
    launched: Callable[[], None] = lambda: None  # waits until the device has computed its part

    def device_s_at(self, now: float) -> float:
        """Return the device time up to now, for the run that has the device."""
        return self.device_s + now - self.since


def select_next(waiting: Sequence[DeviceTurn], used_s: Mapping[str, float]) -> DeviceTurn:
    """Choose the turn that gets the device next. `used_s` is the device time that each owner has used lately."""
    if served := [turn for turn in waiting if turn.request is not None and turn.request.done]:
        return served[0]
    ordered = in_order(sorted(waiting, key=lambda turn: turn.since), used_s)
    selected, request = ordered[0], ordered[0].request
    if request is None or request.key is None:
        return selected
    if sum(turn.request is not None and turn.request.key == request.key for turn in waiting) < request.room:
        for turn in ordered:
            if turn.in_prologue and turn.request is None and turn.shape == selected.shape:
                return turn
    return selected


class DeviceScheduler:
    """Gives the device to one run at a time. Each run calls from a thread of its own.

    `timeline` is caught up with before each forward pass. `on_release` is called by a run that gives the device to
    another, or back.
    """

    def __init__(
        self,
        timeline: DeviceTimeline | None = None,
        on_release: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._timeline = timeline or Synchronous()
        self._on_release = on_release
        self._lock = threading.Lock()
        self._waiting: list[DeviceTurn] = []
        self._holder: DeviceTurn | None = None
        self._current = threading.local()
        self._use = RecentUse()
        self._shares = Shares()
        self._last_pass: Mapping[DeviceTurn, float] = {}  # who shared it, and the part of each
        self._within_pass = threading.Lock()  # of the one run that waits there
        self._arriving: list[DeviceTurn] = []  # in `await_launched`
        self._counted_to = 0.0  # while nobody has the device: up to then its time is in some run's

    @property
    def current(self) -> DeviceTurn | None:
        """Return the calling thread's turn; None for a thread that holds nothing."""
        turn: DeviceTurn | None = getattr(self._current, "turn", None)
        return turn

    @property
    def contended(self) -> bool:
        """Return whether a run waits for the device."""
        with self._lock:
            return bool(self._waiting)

    def in_order(self, turns: Iterable[DeviceTurn]) -> list[DeviceTurn]:
        """Order turns: in front is the one that should have the device first; among equals the one that has waited
        longest."""
        with self._lock:
            by_wait = sorted(turns, key=lambda turn: turn.since)
            return in_order(by_wait, self._used_s(by_wait))

    def enter(self, turn: DeviceTurn) -> None:
        """Count the turn among those that are owed a share of the device, from now on, though it may not have begun to
        wait for it."""
        with self._lock:
            self._shares.enter(turn)

    def leave(self, turn: DeviceTurn) -> None:
        """Remove the turn, which will not need the device."""
        with self._lock:
            self._shares.leave(turn)

    def run_next(self, turn: DeviceTurn) -> None:
        """Let a turn go before all others, since its run will end at once."""
        with self._lock:
            turn.remaining_s, turn.owed_s = 0.0, math.inf

    def promote(self, turn: DeviceTurn) -> None:
        """Let a turn of the tier "flex" be one of "default", which others wait for."""
        with self._lock:
            turn.tier = "default"
            self._shares.enter(turn)

    def preempt(self, turn: DeviceTurn) -> None:
        """Preempt a turn that waits for its first turn on the device: its `acquire` raises Preempted."""
        with self._lock:
            if turn in self._waiting and not turn.device_s:
                self._waiting.remove(turn)
                turn.preempted = True
                turn.ready.set()

    @contextlib.contextmanager
    def acquire(self, turn: DeviceTurn) -> Iterator[None]:
        """Hold the device, except for the pauses at each `yield_point` and in `release`. Raises Preempted."""
        self.enter(turn)
        self._wait(turn)
        if turn.preempted:
            raise Preempted
        self._current.turn = turn
        try:
            yield
        finally:
            self._current.turn = None
            self._give_up(turn)
            self.leave(turn)

    @contextlib.contextmanager
    def release(self) -> Iterator[None]:
        """End the calling thread's turn while it works on the host with the device's results; it waits for its next one
        afterwards. Threads that hold nothing go on."""
        turn = self.current
        if turn is None:
            yield
            return
        self.mark_launched()
        self._give_up(turn)
        try:
            self.await_launched(turn)
            yield
        finally:
            self._wait(turn)

    def mark_launched(self) -> None:
        """Mark the end of the calling thread's launches in its turn, for `await_launched`."""
        if (turn := self.current) is not None:
            turn.launched = self._timeline.mark()

    def await_launched(self, turn: DeviceTurn) -> None:
        """Wait, after a turn, until the device has computed its launches. While no other run has the device, the time
        is the turn's; of several that wait so, in equal parts. From then on the other's own waits count it."""
        with self._lock:
            self._arriving.append(turn)
        try:
            turn.launched()
        finally:
            with self._lock:
                self._count_arriving()
                self._arriving.remove(turn)

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
            turn.ready.clear()
            self._waiting.append(turn)
            selected = self._select()
            if selected is not turn:  # else it keeps what it would have to get again, such as threads
                self._on_release()
            self._grant(selected)
        turn.ready.wait()

    def yield_within_pass(self, *_: Any) -> None:
        """Do as `yield_point` does, in the middle of a component's forward pass. The pass's tensors so far stay in
        memory, so one run at a time waits there; meanwhile the others go on."""
        if self.current is not None and self.contended and self._within_pass.acquire(blocking=False):
            try:
                self.yield_point()
            finally:
                self._within_pass.release()

    def wait_for(self, request: ForwardRequest) -> None:
        """Do as `yield_point` does, before a forward pass. On return the request is done, or it is the calling thread's
        turn to compute it."""
        turn = self.current
        if turn is not None:
            turn.request, turn.in_prologue = request, False
        self.yield_point()

    def mergeable_requests(self, request: ForwardRequest, most: int) -> list[ForwardRequest]:
        """Return requests of waiting runs with the key of `request`, the next ones in order, at most `most`."""
        waiting = self.in_order(self._waiting)
        same = [turn.request for turn in waiting if turn.request is not None and turn.request.key == request.key]
        return [other for other in same if not other.done][: max(0, most)]

    def record_pass(self, requests: Sequence[ForwardRequest], elapsed_s: float) -> None:
        """Record that the calling thread has computed `requests` in one pass: each of their runs has used an equal
        part of it."""
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

    def _any_served(self) -> bool:
        with self._lock:
            return any(turn.request is not None and turn.request.done for turn in self._waiting)

    def _catch_up(self, turn: DeviceTurn) -> None:
        """Wait for the device. The wait is for the last pass, so those who shared it share the time."""
        began = self.clock()
        self._timeline.catch_up()
        waited_s = self.clock() - began
        with self._lock:
            turn.since += waited_s
            for sharer, part in (self._last_pass or {turn: 1.0}).items():
                self._use_device(sharer, waited_s * part, self.clock())

    def _give_up(self, turn: DeviceTurn) -> None:
        self._on_release()
        with self._lock:
            self._account(turn)
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
        self._use_device(turn, now - turn.since, now)
        turn.since = now

    def _count_arriving(self) -> None:
        """Charge the time since nobody has the device to the turns that are arriving, in equal parts."""
        if self._holder is not None:
            return
        now = self.clock()
        for turn in self._arriving:
            self._use_device(turn, (now - self._counted_to) / len(self._arriving), now)
        self._counted_to = now

    def _use_device(self, turn: DeviceTurn, seconds: float, now: float) -> None:
        turn.device_s += seconds
        turn.remaining_s = max(0.0, turn.remaining_s - seconds)  # until its owner knows better
        self._use.add(turn.owner, seconds, now)
        self._shares.credit(seconds)

    def _used_s(self, turns: Iterable[DeviceTurn]) -> dict[str, float]:
        now = self.clock()
        return {owner: self._use.of(owner, now) for owner in {turn.owner for turn in turns}}

    def _grant_next(self) -> None:
        if self._waiting:
            self._grant(self._select())
        else:
            self._holder = None
            self._counted_to = self.clock()
            self._use.delete_idle(self._counted_to)

    def _select(self) -> DeviceTurn:
        return select_next(self._waiting, self._used_s(self._waiting))

    def _grant(self, turn: DeviceTurn) -> None:
        self._waiting.remove(turn)
        self._count_arriving()
        self._holder = turn
        turn.since = self.clock()
        turn.ready.set()
