"""The queue of image jobs in seconds of device time: its limit tells ten drafts from ten 4K images.

The workers here have one line, and every other server that draws has a line of its own: neither waits for the other.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipelines.checkpoints.work.estimate import FIRST_UNIT_S, is_duration, work_units
from pipelines.protocol.images import CheckpointSpec, Finished, ImageJob
from pipelines.protocol.tiers import RANK, ServiceTier
from server.errors import Overloaded, RateLimited
from server.state.active_calls import ActiveCall

MARGIN = 1.25  # by which the fastest image so far may have been slower than the next one
WARMUP_MARGIN = 2.0  # the same of warmup, whose images are small and few
HERE = ""  # the line of the workers
UnitSeconds = Callable[[CheckpointSpec], float | None]
Workers = Callable[[CheckpointSpec], Collection[str]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A job that is queued or runs, and its call, which knows the progress."""

    job: ImageJob
    call: ActiveCall
    units: float

    @property
    def line(self) -> str:
        """Return the line that the job is in: HERE, or the URL of another server."""
        upstream = self.job.checkpoint.upstream
        return upstream.base_url if upstream is not None else HERE

    @property
    def units_left(self) -> float:
        progress = self.call.progress
        return self.units if progress is None else self.units * (1 - progress.step / progress.steps)


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """A job's place in the queue and its estimated end. `position` is 0 on the device, else its place in the queue."""

    model: str | None
    tier: ServiceTier
    position: int
    estimated_s: float


class Backlog:
    """The image jobs of a server by estimated device time.

    While others have jobs here, a key may take `key_share` of both limits. Alone it may take all, and then a key that
    comes has the rest of a share beyond the limits: nobody is refused for the sake of another.

    `warmup_unit_s` gives the seconds that a unit of work took during warmup, if that was measured. The reports of
    finished jobs replace it. `workers` names those that may draw with a checkpoint: `max_s` is for each, and a job
    waits for the work of those that may draw it. Other servers are taken to draw all that they have at once: they have
    queues of their own, and say when those are full.
    """

    def __init__(
        self,
        max_jobs: int,
        max_s: float,
        key_share: float = 1.0,
        warmup_unit_s: UnitSeconds = lambda _: None,
        workers: Workers = lambda _: frozenset({"the only one"}),
    ) -> None:
        self._max_jobs = max_jobs
        self._max_s = max_s
        self._key_share = key_share
        self._warmup_unit_s = warmup_unit_s
        self._workers = workers
        self._unit_s: dict[CheckpointSpec, float] = {}
        self._fastest_s: dict[CheckpointSpec, float] = {}  # of a unit of work, of all jobs that have finished
        self._entries: dict[str, _Entry] = {}

    @contextmanager
    def reserve(self, job: ImageJob, call: ActiveCall) -> Iterator[None]:
        """Count the job while this is entered. Raises RateLimited and Overloaded."""
        entry = _Entry(job, call, work_units(job))
        key_id = call.call.key_id
        others = any(other.call.call.key_id != key_id for other in self._entries_of(None, entry.line))
        comes = others and not any(self._entries_of(key_id, entry.line))
        if (wait_s := self._wait_s(entry, share=2 - self._key_share if comes else 1.0)) is not None:
            raise Overloaded(
                f"The server is busy: {len(list(self._entries_of(None, entry.line)))} jobs with about "
                f"{self.remaining_s(None, entry.line):.0f} s of work are "
                f"queued, and this one would exceed the limit. Try again in {math.ceil(wait_s)} s.",
                wait_s,
            )
        if others and (wait_s := self._wait_s(entry, key_id, self._key_share)) is not None:
            raise RateLimited(
                f"This key has {len(list(self._entries_of(key_id, entry.line)))} jobs with about "
                f"{self.remaining_s(key_id, entry.line):.0f} s of work in the queue, and this one would exceed its "
                f"share of it. Try again in {math.ceil(wait_s)} s.",
                wait_s,
            )
        self._entries[job.id] = entry
        try:
            yield
        finally:
            del self._entries[job.id]

    def record(self, job: ImageJob, finished: Finished) -> None:
        """Learn from a finished job the seconds of a unit of work."""
        if is_duration(finished.unit_s):
            self._unit_s[job.checkpoint] = finished.unit_s
        if is_duration(finished.run_s):
            own_s = finished.run_s / work_units(job)
            self._fastest_s[job.checkpoint] = min(own_s, self._fastest_s.get(job.checkpoint, own_s))

    def least_s(self, job: ImageJob) -> float | None:
        """Return the least device time in seconds that a job may take, at the highest speed that its checkpoint has
        shown; None before it has shown any. Small images, and jobs that ran beside others, are slower by the unit, so
        the highest counts, less a margin, which is larger while warmup alone has measured."""
        shown = self._fastest_s.get(job.checkpoint)
        speeds = [each for each in (shown, self._warmup_unit_s(job.checkpoint)) if each is not None]
        margin = MARGIN if shown is not None else WARMUP_MARGIN
        return work_units(job) * min(speeds) / margin if speeds else None

    def remaining_s(self, key_id: str | None = None, line: str | None = None) -> float:
        """Return the estimated device time in seconds of all jobs, or of one key's, or of one line's."""
        return sum(self._remaining_s(entry) for entry in self._entries_of(key_id, line))

    def next_end_s(self, key_id: str | None = None, line: str | None = None) -> float:
        """Return the seconds after which the first of these jobs may end: the engine runs the shortest first."""
        return min((self._remaining_s(entry) for entry in self._entries_of(key_id, line)), default=0.0)

    def estimate_job(self, job_id: str) -> JobEstimate | None:
        """Return a job's place in the queue and its estimated end; None for a job that is not here. The engine runs the
        shortest first, so those are ahead."""
        entry = self._entries.get(job_id)
        if entry is None:
            return None
        mine_s, others = (
            self._remaining_s(entry),
            [other for other in self._entries_of(None, entry.line) if other is not entry],
        )
        mine = (RANK[entry.job.tier], mine_s)
        ahead = [
            other
            for other in others
            if other.call.state == "running" or (RANK[other.job.tier], self._remaining_s(other)) < mine
        ]
        queued = sum(other.call.state == "queued" for other in ahead)
        ahead_s = self._work_s(ahead, entry) / self._at_once(entry)
        return JobEstimate(
            model=entry.job.metadata.get("model"),
            tier=entry.job.tier,
            position=0 if entry.call.state == "running" else queued + 1,
            estimated_s=round(entry.call.wake_left_s + mine_s + ahead_s, 1),
        )

    def _entries_of(self, key_id: str | None, line: str | None = None) -> Iterator[_Entry]:
        entries = (entry for entry in self._entries.values() if key_id in {None, entry.call.call.key_id})
        return (entry for entry in entries if line in {None, entry.line})

    def _at_once(self, entry: _Entry) -> int:
        """Return how many jobs may run at once where a job may run."""
        here = entry.line == HERE
        return max(1, len(self._workers(entry.job.checkpoint) if here else list(self._entries_of(None, entry.line))))

    def _work_s(self, others: Iterable[_Entry], entry: _Entry) -> float:
        """Return the estimated device time in seconds of jobs of a job's line where that one may run: each worker that
        may draw a job has an equal part of it."""
        work_s: dict[CheckpointSpec, float] = {}
        for other in others:
            spec = other.job.checkpoint
            work_s[spec] = work_s.get(spec, 0.0) + self._remaining_s(other)
        if entry.line != HERE:
            return sum(work_s.values())
        mine = set(self._workers(entry.job.checkpoint))
        parts = {spec: set(self._workers(spec)) for spec in work_s}
        return sum(each * len(parts[spec] & mine) / max(1, len(parts[spec])) for spec, each in work_s.items())

    def _wait_s(self, entry: _Entry, key_id: str | None = None, share: float = 1.0) -> float | None:
        """Return the seconds until there is room in a share of the queue, for all or for one key; None if there is. An
        idle server takes a job of any length, and so does it from a key that has none."""
        line = entry.line
        jobs = len(list(self._entries_of(key_id, line)))
        if jobs == 0:
            return None
        workers = self._at_once(entry)
        room_s = max(0.0, share * self._max_s * workers - self._remaining_s(entry))
        for_work_s = (self._work_s(self._entries_of(key_id, line), entry) - room_s) / workers
        full = jobs >= math.ceil(share * self._max_jobs)
        return max(for_work_s, self.next_end_s(key_id, line) if full else 0.0) if full or for_work_s > 0 else None

    def _remaining_s(self, entry: _Entry) -> float:
        spec = entry.job.checkpoint
        return entry.units_left * (self._unit_s.get(spec) or self._warmup_unit_s(spec) or FIRST_UNIT_S)
