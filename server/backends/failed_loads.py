"""What the workers of one host could not do: load a checkpoint, or draw an image for which the GPU has no memory.

A checkpoint that failed to load would most likely fail again, and evict others on its way. Its jobs are refused at once
until a pause is over that doubles with each failure, its files have changed, others leave memory, or the catalog is
loaded anew. Where a load ended its worker, that may have been chance once.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pipelines.checkpoints.folder.versions import files_version
from pipelines.protocol.images import CheckpointSpec, Failed, ImageJob
from pipelines.protocol.messages import GpuMemory, Spec
from server.backends.job_events import JobEvents

LOAD: Final = 0  # in place of an image's area: what fails to load draws none
FIRST_PAUSE_S: Final = 30.0  # that what failed is not tried again for; it doubles
LONGEST_PAUSE_S: Final = 1800.0
MOST_ENDS: Final = 2  # of workers by one checkpoint, until others are not to be lost for it
MOST_DOUBLINGS: Final = 10  # a float has no power of two for a checkpoint that has failed for weeks
FREED_SHARE: Final = 1 / 16  # of a GPU's memory: others that leave so much may leave the room that was missing
LOOK_S: Final = 2.0  # for which a job waits for a disk that does not say whether files have changed
REFUSED = (
    "The checkpoint '{}' can't be used: {}. The server's log says why; it is tried again in {:.0f} s, and at once when "
    "its files have changed. Nothing was charged."
)


def pixels(job: ImageJob) -> int:
    """Return how many pixels a job's image has together with those that it is drawn from: what its memory grows with.
    An image that fails for its many references says nothing of images without them."""
    shown = [*job.references, *(control.image for control in job.controls)]
    return job.width_px * job.height_px + sum(image.width_px * image.height_px for image in shown)


@dataclass(slots=True)
class Failure:
    """How often a load, or an image of some size, has failed in a row, and when last, by the monotonic clock; the most
    that others have had of the GPU's memory since, None until that was measured; how many workers it has ended in a
    row; whether another try may well go better."""

    count: int
    at: float
    others_bytes: int | None = None
    ends: int = 0
    is_chance: bool = False

    @property
    def left_s(self) -> float:
        """Return how long no other try is made, since it would most likely fail too; not above 0 when it may be."""
        pause_s = FIRST_PAUSE_S * 2.0 ** min(self.count - 1, MOST_DOUBLINGS)
        return self.at + min(LONGEST_PAUSE_S, pause_s) - time.monotonic()

    @property
    def counts(self) -> bool:
        """Return whether another try would most likely fail too."""
        return self.left_s > 0


class FailedLoads:
    """The failures of a host, by checkpoint and area. They outlive a worker, as they may have been its end."""

    def __init__(self) -> None:
        self.mended_at: dict[Spec, float] = {}  # when one that had failed was loaded after all, or got other files
        self._failures: dict[tuple[Spec, int], Failure] = {}
        self._versions: dict[Spec, asyncio.Task[str]] = {}  # of the files that failed
        self._looks: dict[Spec, asyncio.Task[None]] = {}

    def find(self, spec: Spec, area_px: int = LOAD) -> Failure | None:
        """Return the failure that is known of a checkpoint's load, or of its images of just this area."""
        return self._failures.get((spec, area_px))

    def remember(
        self, spec: Spec, area_px: int = LOAD, *, ends_worker: bool = False, waits_for_memory: bool = False
    ) -> None:
        """Remember that a load of a checkpoint has failed, has ended its worker or waits for what other programs have;
        or that the GPU has no memory for images of this area. What many jobs waited for fails once."""
        before = self.find(spec, area_px) or Failure(0, -LONGEST_PAUSE_S)
        ends = before.ends + 1 if ends_worker else before.ends if before.ends >= MOST_ENDS else 0
        is_chance = waits_for_memory or 0 < ends < MOST_ENDS
        count = before.count + (not before.counts)
        self._failures[spec, area_px] = Failure(count, time.monotonic(), ends=ends, is_chance=is_chance)
        if self.refuses(spec) and (spec not in self._versions or self._versions[spec].done()):
            self._versions[spec] = asyncio.create_task(_version(spec))

    def record_loaded(self, spec: Spec) -> None:
        """Record that a checkpoint was loaded."""
        if self.forget(spec):
            self.mended_at[spec] = time.monotonic()

    def at(self, spec: Spec, area_px: int = LOAD) -> float | None:
        """Return when a load of a checkpoint last failed here, or an image of at most this area, by the monotonic
        clock; None if none did, as far as counts."""
        known = (each for (failed, px), each in self._failures.items() if failed == spec and px <= area_px)
        return max((each.at for each in known if each.counts), default=None)

    def ended_workers(self, spec: Spec) -> bool:
        """Return whether loading a checkpoint now would most likely end this worker too."""
        failure = self.find(spec)
        return failure is not None and failure.ends >= MOST_ENDS and failure.counts

    def refuses(self, spec: Spec) -> bool:
        """Return whether loading a checkpoint now would most likely fail too. Those of other servers are not loaded."""
        failure = self.find(spec)
        loads = not isinstance(spec, CheckpointSpec) or spec.upstream is None
        return failure is not None and loads and failure.counts and not failure.is_chance

    def refuse(self, spec: Spec, again: Callable[[], JobEvents[Any]]) -> JobEvents[Any]:
        """Return the events of a job whose checkpoint is refused: those of `again`, if its files have changed."""
        queue: asyncio.Queue[Any] = asyncio.Queue()

        def tell(_: object = None) -> None:
            late.cancel()
            queue.put_nowait(self._refusal(spec))

        if spec not in self._looks:  # while a disk hangs it has one thread, and not one for each job
            self._looks[spec] = asyncio.create_task(self._look(spec))
            self._looks[spec].add_done_callback(lambda _: self._looks.pop(spec))
        late = asyncio.get_running_loop().call_later(LOOK_S, tell)
        self._looks[spec].add_done_callback(tell)
        events = JobEvents[Any](queue)
        events.move = lambda _: None if self.refuses(spec) else again()
        return events

    def forget(self, spec: Spec) -> bool:
        """Forget that a checkpoint has failed to load. Returns whether it had."""
        self._versions.pop(spec, None)
        return self._failures.pop((spec, LOAD), None) is not None

    def forget_sizes(self, spec: Spec, px: int) -> None:
        """Forget failures of images of at most so many pixels: one has been drawn."""
        for key in [(failed, size) for failed, size in self._failures if failed == spec and LOAD < size <= px]:
            del self._failures[key]

    def note_memory(self, gpu: GpuMemory) -> None:
        """Forget failures on a GPU of whose memory others have left a part."""
        others_bytes = gpu.total_bytes - gpu.free_bytes - gpu.reserved_bytes
        for key, failure in list(self._failures.items()):
            failure.others_bytes = max(failure.others_bytes or 0, others_bytes)
            if others_bytes < failure.others_bytes - gpu.total_bytes * FREED_SHARE:
                del self._failures[key]

    def clear(self) -> None:
        """Forget everything."""
        for known in (self._failures, self.mended_at, self._versions):
            known.clear()

    async def _look(self, spec: Spec) -> None:
        """Forget a checkpoint's failure if its files are others than those that failed."""
        failed = self._versions.get(spec)
        is_changed = failed is not None and await asyncio.shield(failed) != await _version(spec)
        if is_changed and failed is self._versions.get(spec) and self.forget(spec):
            self.mended_at[spec] = time.monotonic()

    def _refusal(self, spec: Spec) -> Failed:
        failure = self.find(spec) or Failure(1, time.monotonic())
        why = "workers end while they load it" if failure.ends >= MOST_ENDS else "loading it has failed"
        message = REFUSED.format(spec.name, why, max(1.0, failure.left_s))
        return Failed("checkpoint_failed", message, movable="anywhere")


async def _version(spec: Spec) -> str:
    paths = spec.paths if isinstance(spec, CheckpointSpec) else (spec.path,)
    return await asyncio.to_thread(files_version, paths)
