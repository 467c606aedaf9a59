"""The queue of image jobs in seconds of device time: its limit tells ten drafts from ten 4K pictures."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipelines.catalog.estimate import FIRST_UNIT_S, work_units
from pipelines.protocol.images import CheckpointSpec, ImageJob
from server.errors import Overloaded
from server.state.active_calls import ActiveCall

UnitSeconds = Callable[[CheckpointSpec], float | None]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A job that is queued or runs, and its call, which knows the progress."""

    job: ImageJob
    call: ActiveCall
    units: float

    @property
    def units_left(self) -> float:
        progress = self.call.progress
        return self.units if progress is None else self.units * (1 - progress.step / progress.steps)


class Backlog:
    """The image jobs of a server by estimated device time.

    `warmup_unit_s` gives the seconds that a unit of work took during warmup, if that was measured. What finished jobs
    report replaces it.
    """

    def __init__(self, max_jobs: int, max_s: float, warmup_unit_s: UnitSeconds = lambda _: None) -> None:
        self._max_jobs = max_jobs
        self._max_s = max_s
        self._warmup_unit_s = warmup_unit_s
        self._unit_s: dict[CheckpointSpec, float] = {}
        self._entries: dict[str, _Entry] = {}

    @contextmanager
    def reserve(self, job: ImageJob, call: ActiveCall) -> Iterator[None]:
        """Count the job while this is entered. Raises Overloaded."""
        entry = _Entry(job, call, work_units(job))
        wait_s = self._wait_s(entry)
        if wait_s is not None:
            raise Overloaded(
                f"The server is busy: {len(self._entries)} jobs with about {self.remaining_s():.0f} s of work are "
                f"queued, and this one would exceed the limit. Try again in {math.ceil(wait_s)} s.",
                wait_s,
            )
        self._entries[job.id] = entry
        try:
            yield
        finally:
            del self._entries[job.id]

    def record_unit_s(self, checkpoint: CheckpointSpec, unit_s: float) -> None:
        """A finished job measured the seconds of a unit of work."""
        self._unit_s[checkpoint] = unit_s

    def remaining_s(self, key_id: str | None = None) -> float:
        """Estimated device time of all jobs, or of one key's."""
        return sum(self._remaining_s(entry) for entry in self._of(key_id))

    def next_end_s(self, key_id: str | None = None) -> float:
        """When the first of these jobs may end: the engine runs the shortest first."""
        return min((self._remaining_s(entry) for entry in self._of(key_id)), default=0.0)

    def _of(self, key_id: str | None) -> Iterator[_Entry]:
        return (entry for entry in self._entries.values() if key_id in {None, entry.call.call.key_id})

    def _wait_s(self, entry: _Entry) -> float | None:
        """Seconds until there is room; None if there is. An idle server takes a job of any length."""
        if not self._entries:
            return None
        for_work_s = self.remaining_s() - max(0.0, self._max_s - self._remaining_s(entry))
        full = len(self._entries) >= self._max_jobs
        return max(for_work_s, self.next_end_s() if full else 0.0) if full or for_work_s > 0 else None

    def _remaining_s(self, entry: _Entry) -> float:
        spec = entry.job.checkpoint
        return entry.units_left * (self._unit_s.get(spec) or self._warmup_unit_s(spec) or FIRST_UNIT_S)
