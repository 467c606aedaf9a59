"""Whether a waiting image may start: there is room for it, and it joins others or goes before them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.checkpoints.work.estimate import WeightsKey, weights_key, weights_state
from pipelines.images.scheduling.batching import Row
from pipelines.images.scheduling.row_limits import PassShape, RowLimits
from pipelines.images.scheduling.scheduler import DeviceScheduler, DeviceTurn
from pipelines.protocol.images import CheckpointSpec, ControlInput, Runtime, Sampling

MAX_RUNS = 16  # on the device at once: those of a shared forward pass, and paused ones
MAX_RUNS_OF_KEY = 12  # so that another key's image finds room
FIRST = 2  # in the order of those who run: the next one waits for the device when the first one ends


class Weights(Protocol):
    """The properties of a loaded checkpoint that admission needs."""

    @property
    def runtime(self) -> Runtime:
        """Return the options that it was loaded with."""

    @property
    def multiple_px(self) -> int:
        """Return the number of px that both sides of a drawn image are multiples of."""

    def is_outdated(self, sampling: Sampling, controls: Sequence[ControlInput]) -> bool:
        """Return whether a file that such a run draws with has changed since it was read into the weights."""


class CacheEntry(Protocol):
    """A checkpoint of the cache, which is in memory."""

    @property
    def checkpoint(self) -> Weights:
        """Return the checkpoint's weights."""

    @property
    def ref_count(self) -> int:
        """Return how many runs use the checkpoint."""


class Started(Protocol):
    """A run: a row that has a thread."""

    @property
    def row(self) -> Row:
        """Return the row that the run draws: one image of a job."""

    @property
    def loaded(self) -> CacheEntry:
        """Return the checkpoint that the run draws with."""

    @property
    def turn(self) -> DeviceTurn:
        """Return the run's state at the scheduler."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides which images may start. The collections are the engine's own."""

    _runs: Collection[Started]  # all that have started
    _drawing: Collection[Started]  # those that still need the device
    _alone: Sequence[Collection[WeightsKey]]  # weights of which two images at once come out wrong, or were not tried
    _limits: RowLimits
    _held_bytes: int  # that the memory which all hold between turns stays below

    def may_start(self, row: Row, loaded: CacheEntry | None, ahead: int) -> bool:
        """Return whether there is room for its tensors, and it joins others or is one of the first: `ahead` run before
        it."""
        if not self._drawing and len(self._runs) < MAX_RUNS:
            return True
        if not self._fits_beside(row) or len(self._runs) >= MAX_RUNS or self._of_key(row) >= MAX_RUNS_OF_KEY:
            return False
        return ahead < FIRST or (loaded is not None and self._joins(row, loaded))

    def preempt_for(self, row: Row, ahead: int, scheduler: DeviceScheduler) -> None:
        """Make a place for an image that lacks nothing else: the last of the runs that have not begun gives up its own,
        if it is behind: its thread ends, and its image waits again."""
        full = len(self._runs) >= MAX_RUNS
        if ahead >= FIRST or not (full or self._of_key(row) >= MAX_RUNS_OF_KEY) or not self._fits_beside(row):
            return
        places = [run.turn for run in self._drawing if not run.turn.device_s and (full or run.row.owner == row.owner)]
        last = scheduler.in_order([row.turn, *places])[-1]
        if last is not row.turn and not any(run.turn.preempted for run in self._runs):
            scheduler.preempt(last)

    def _fits_beside(self, row: Row) -> bool:
        if row.exclusive or any(run.row.exclusive for run in self._runs):
            return False
        return sum(run.row.held_bytes() for run in self._runs) + row.held_bytes() <= self._held_bytes

    def _of_key(self, row: Row) -> int:
        return sum(run.row.owner == row.owner for run in self._runs)

    def _joins(self, row: Row, loaded: CacheEntry) -> bool:
        """Return whether forward passes that others share have room for it."""
        shape = self._shape(row, loaded)
        sharing = sum(run.turn.shape == shape for run in self._drawing)
        return 0 < sharing < self._limits.of(shape)

    def _shape(self, row: Row, loaded: CacheEntry) -> PassShape:
        if row.shape is None:
            row.shape = PassShape.first_of(row.job, loaded.checkpoint.multiple_px)
        return row.shape

    def expect(self, waiting: Iterable[Row], find: Callable[[CheckpointSpec], CacheEntry | None]) -> None:
        """Count the images that run or wait, by the shape of their passes: as many could share a pass."""
        found = [(row, find(row.job.checkpoint)) for row in waiting]
        shapes = [self._shape(row, loaded) for row, loaded in found if loaded is not None]
        self._limits.expect([*shapes, *(run.turn.shape for run in self._drawing)])

    def is_busy(self, loaded: CacheEntry, row: Row) -> bool:
        """Return whether other runs keep this image from starting on the checkpoint. Adapters that requests name are
        state of the weights: only runs with the same ones, of the same files, go together. Runs of a checkpoint whose
        components take turns on the device go one after another: two would need two of them at once, or move them at
        every turn. So do those that warmup has found to disturb each other, or has not tried yet."""
        runtime = loaded.checkpoint.runtime
        if runtime.offload == "model":
            return loaded.ref_count > 0
        key = weights_key(row.job.checkpoint)
        if any(key in alone for alone in self._alone):
            runs = (run.row for run in self._runs if run.loaded is loaded)
            return any(not (row.is_check and other.job is row.job) for other in runs)  # which warmup tries at once
        others = [weights_state(run.row.job) for run in self._runs if run.loaded is loaded]
        if any(other != weights_state(row.job) for other in others):
            return True
        return bool(others) and loaded.checkpoint.is_outdated(row.job.sampling, row.job.controls)
