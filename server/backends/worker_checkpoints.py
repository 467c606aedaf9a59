"""The checkpoints of one host's workers: which they are to load, have loaded, could not load, and have lost to a
sleep."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pipelines.protocol.images import ImageJob
from pipelines.protocol.messages import CheckpointState, GpuMemory, JobKind, Spec
from server.backends.worker_life import Place

FIRST_LOAD_S: Final = 20.0  # assumed for loading a checkpoint until it has been loaded
RESTORE_SHARE: Final = 0.1  # of the time from the disk that weights take from the host's memory
LOAD: Final = 0  # in place of an image's area: what fails to load draws none
FIRST_PAUSE_S: Final = 30.0  # that what failed is not tried again for where another worker may do it; it doubles
LONGEST_PAUSE_S: Final = 1800.0
MOST_ENDS: Final = 2  # of workers by one checkpoint, until others are not to be lost for it
MOST_DOUBLINGS: Final = 10  # a float has no power of two for a checkpoint that has failed for weeks
FREED_SHARE: Final = 1 / 16  # of a GPU's memory: others that leave so much may leave the room that was missing


def pixels(job: ImageJob) -> int:
    """Return how many pixels a job's image has together with those that it is drawn from: what its memory grows with.
    An image that fails for its many references says nothing of images without them."""
    shown = [*job.references, *(control.image for control in job.controls)]
    return job.width_px * job.height_px + sum(image.width_px * image.height_px for image in shown)


class WorkerDied(Exception):
    """The worker died, or was restarting, while a checkpoint was being prepared."""

    def __init__(self, kind: JobKind) -> None:
        super().__init__(f"the {kind} worker died while the checkpoint was loading")


@dataclass(slots=True)
class Failure:
    """How often a load, or an image of some size, has failed in a row, and when last, by the monotonic clock; the most
    that others have had of the GPU's memory since, None until that was measured; how many workers it has ended."""

    count: int
    at: float
    others_bytes: int | None = None
    ends: int = 0

    @property
    def counts(self) -> bool:
        """Return whether another try would most likely fail too."""
        return time.monotonic() - self.at < min(
            LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.count - 1, MOST_DOUBLINGS)
        )


class WorkerCheckpoints:
    """The checkpoints of a host. `preload` are those that every worker loads, `retained` those that it may have, once
    that is told; `states` is what became of those that were loaded; `loading` are told to the worker, or will be told
    to one that is woken, and have no state yet. `failures` are of loads, and of images of some area, by checkpoint:
    they outlive a worker, as they may have been its end."""

    def __init__(self, preload: Iterable[Spec]) -> None:
        self.preload = tuple(preload)
        self.retained: tuple[Spec, ...] = ()
        self.states: dict[Spec, CheckpointState] = {}
        self.loading: dict[Spec, None] = {}
        self.failures: dict[tuple[Spec, int], Failure] = {}
        self.mended_at: dict[Spec, float] = {}  # when one that had failed was loaded after all
        self._preparing: dict[Spec, asyncio.Future[CheckpointState]] = {}
        self._cold: dict[Spec, Place] = {}  # served, and to be loaded by the first job that needs it

    @property
    def are_settled(self) -> bool:
        """Return whether nothing is being loaded."""
        return not self.loading and not self._preparing

    def retain(self, specs: Sequence[Spec], preload: Sequence[Spec], *, retries: bool = True) -> list[Spec]:
        """Forget all others than `specs`, and return those of `preload` that have to be loaded now: with `retries` also
        those that have failed."""
        self.preload, self.retained = tuple(preload), tuple(specs)
        kept = set(specs)
        self.states = {spec: state for spec, state in self.states.items() if spec in kept}
        self._cold = {spec: place for spec, place in self._cold.items() if spec in kept}
        if retries:
            self.failures.clear()
            self.mended_at.clear()
        wanted = [spec for spec in preload if not self.is_loaded(spec) and spec not in self.loading]
        return [spec for spec in wanted if self.failed_at(spec) is None]

    def first_loads(self, *, wakes: bool) -> tuple[Spec, ...]:
        """Return what a new worker is to load: everything, or what was asked of one that `wakes`."""
        if not wakes:
            self.loading = dict.fromkeys(self.preload)
        return tuple(self.loading)

    def preparing(self, spec: Spec) -> asyncio.Future[CheckpointState]:
        """Return what will become of a checkpoint that is being loaded."""
        return self._preparing.setdefault(spec, asyncio.get_running_loop().create_future())

    def record(self, state: CheckpointState) -> None:
        """Record that a checkpoint is loaded, or that it can't be."""
        self.loading.pop(state.spec, None)
        if state.state == "loaded":
            self._cold.pop(state.spec, None)
            if self.failures.pop((state.spec, LOAD), None) is not None:
                self.mended_at[state.spec] = time.monotonic()
        else:
            self.remember_failure(state.spec)
        self.states[state.spec] = state
        if (future := self._preparing.pop(state.spec, None)) and not future.done():
            future.set_result(state)

    def fail(self, spec: Spec, reason: str) -> None:
        """Record that a checkpoint does not load now. What it can do is known from before, if it has been loaded."""
        known = self.states.get(spec)
        failed = CheckpointState(spec, "failed", reason)
        self.states[spec] = replace(known, state="failed", detail=reason) if known is not None else failed
        self.remember_failure(spec)

    def remember_failure(self, spec: Spec, area_px: int = LOAD, *, ends_worker: bool = False) -> None:
        """Remember that a load of a checkpoint has failed, or has ended its worker; or that the GPU has no memory for
        images of this area. What many jobs waited for fails once."""
        before = self.failures.get((spec, area_px))
        count = 1 if before is None else before.count + (not before.counts)
        ends = ends_worker + (0 if before is None else before.ends)
        self.failures[spec, area_px] = Failure(count, time.monotonic(), ends=ends)

    def ends_workers(self, spec: Spec) -> bool:
        """Return whether loading a checkpoint now would most likely end this worker too: one may die by chance while
        it loads, a second one hardly."""
        failure = self.failures.get((spec, LOAD))
        return failure is not None and failure.ends >= MOST_ENDS and failure.counts

    def failed_at(self, spec: Spec, area_px: int = LOAD) -> float | None:
        """Return when a load of a checkpoint last failed here, or an image of at most this area, by the monotonic
        clock; None if none did, as far as counts."""
        known = (each for (failed, px), each in self.failures.items() if failed == spec and px <= area_px)
        return max((each.at for each in known if each.counts), default=None)

    def forget_failures(self, spec: Spec, px: int) -> None:
        """Forget failures of images of at most so many pixels: one has been drawn."""
        for key in [(failed, size) for failed, size in self.failures if failed == spec and LOAD < size <= px]:
            del self.failures[key]

    def is_mended(self, spec: Spec) -> bool:
        """Return whether a checkpoint, with which a job has just started, is on record as one that does not load."""
        return spec in self.states and not self.is_loaded(spec) and spec not in self.loading

    def note_memory(self, gpu: GpuMemory) -> None:
        """Forget failures on a GPU of whose memory others have left a part."""
        others_bytes = gpu.total_bytes - gpu.free_bytes - gpu.reserved_bytes
        for key, failure in list(self.failures.items()):
            failure.others_bytes = max(failure.others_bytes or 0, others_bytes)
            if others_bytes < failure.others_bytes - gpu.total_bytes * FREED_SHARE:
                del self.failures[key]

    def is_loaded(self, spec: Spec) -> bool:
        """Return whether a checkpoint has been loaded, whether or not it has left the device since."""
        return spec in self.states and self.states[spec].state == "loaded"

    def slept(self, place: Place) -> None:
        """Record that all have left the device."""
        self._cold.update(dict.fromkeys(self.states, place))

    def cold(self, specs: Iterable[Spec]) -> list[Spec]:
        """Return those that have left the device and are not yet on their way back."""
        return [spec for spec in specs if spec in self._cold and spec not in self.loading]

    def wake_s(self, spec: Spec, start_s: float | None) -> float:
        """Return how long it takes until a checkpoint is back that has left the device; 0 if it has not. `start_s` is
        the time of the worker's start; None if it is there."""
        place, state = self._cold.get(spec), self.states.get(spec)
        if place is None or state is None:
            return 0.0
        load_s = FIRST_LOAD_S if state.load_s is None else state.load_s
        if start_s is not None:
            return start_s + load_s
        return load_s * RESTORE_SHARE if place == "host" else load_s

    def lose(self, kind: JobKind) -> None:
        """Forget what a dead worker had. Whoever waits for a checkpoint gets WorkerDied."""
        for future in self._preparing.values():
            if not future.done():
                future.set_exception(WorkerDied(kind))
        for known in (self.states, self.loading, self._preparing, self._cold):
            known.clear()
