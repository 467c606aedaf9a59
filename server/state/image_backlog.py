"""How much work waits. A bound on it tells ten drafts from ten 4K pictures, which one on the number of jobs can't."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipelines.catalog.estimate import FIRST_UNIT_S, work_units
from pipelines.protocol.images import CheckpointSpec, ImageJob
from server.errors import Overloaded
from server.state.active_calls import RunningCall

UnitSeconds = Callable[[CheckpointSpec], float | None]


@dataclass(frozen=True, slots=True)
class _Place:
    """A job that waits or runs, and its call, which knows how far it is."""

    job: ImageJob
    call: RunningCall
    units: float

    @property
    def units_left(self) -> float:
        progress = self.call.progress
        return self.units if progress is None else self.units * (1 - progress.step / progress.steps)


class Backlog:
    """The image jobs of a server by their estimated device time. `warmed` is what a unit of work took while a
    checkpoint was warmed, if it was; what jobs report later counts more."""

    def __init__(self, most_jobs: int, most_s: float, warmed: UnitSeconds = lambda _: None) -> None:
        self._most_jobs = most_jobs
        self._most_s = most_s
        self._warmed = warmed
        self._unit_s: dict[CheckpointSpec, float] = {}
        self._places: dict[str, _Place] = {}

    @contextmanager
    def place(self, job: ImageJob, call: RunningCall) -> Iterator[None]:
        """A place for the call's job while this is entered. Raises Overloaded."""
        place = _Place(job, call, work_units(job))
        wait_s = self._wait_s(place)
        if wait_s is not None:
            raise Overloaded(
                f"The server is busy: {len(self._places)} jobs with about {self.left_s():.0f} s of work are before "
                f"this one, and with it there would be more than it takes on. Try again in {math.ceil(wait_s)} s.",
                wait_s,
            )
        self._places[job.id] = place
        try:
            yield
        finally:
            del self._places[job.id]

    def measured(self, checkpoint: CheckpointSpec, unit_s: float) -> None:
        """Take note of what a unit of work lately takes."""
        self._unit_s[checkpoint] = unit_s

    def left_s(self, key_id: str | None = None) -> float:
        """Device time that the jobs still need: all of them, or one key's."""
        return sum(self._left_s(place) for place in self._of(key_id))

    def next_end_s(self, key_id: str | None = None) -> float:
        """When the first of these jobs may end: the engine lets the shortest go first."""
        return min((self._left_s(place) for place in self._of(key_id)), default=0.0)

    def _of(self, key_id: str | None) -> Iterator[_Place]:
        return (place for place in self._places.values() if key_id in {None, place.call.ticket.call.key_id})

    def _wait_s(self, place: _Place) -> float | None:
        """In how many seconds there will be room; None if there is. An idle server takes a job of any length."""
        if not self._places:
            return None
        for_work_s = self.left_s() - max(0.0, self._most_s - self._left_s(place))
        full = len(self._places) >= self._most_jobs
        return max(for_work_s, self.next_end_s() if full else 0.0) if full or for_work_s > 0 else None

    def _left_s(self, place: _Place) -> float:
        spec = place.job.checkpoint
        return place.units_left * (self._unit_s.get(spec) or self._warmed(spec) or FIRST_UNIT_S)
