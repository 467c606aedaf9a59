"""One batch on the device: what happens on its thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.device.failures import Cancelled, watch_device
from pipelines.images.batching import Batch, Row, held_bytes
from pipelines.images.pipeline import BatchPipeline
from pipelines.images.residency import Resident
from pipelines.images.scheduler import DeviceScheduler, DeviceTurn
from pipelines.images.step_observer import Pixels, PreviewFn
from pipelines.protocol.images import ImageJob


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Called on the run's thread."""

    on_start: Callable[["Run"], None]
    on_step: Callable[["Run"], None]
    on_drawn: Callable[["Run"], None]  # it no longer needs the device
    on_preview: Callable[[Row, int, Pixels], None]


class Run:
    """A started batch. Cancelled rows leave `active_rows`; the run ends early when none are left."""

    def __init__(
        self, batch: Batch, resident: Resident, scheduler: DeviceScheduler, estimate_s: float, callbacks: RunCallbacks
    ) -> None:
        self.batch = batch
        self.resident = resident
        self.active_rows = set(batch.rows)
        self.turn = DeviceTurn(remaining_s=estimate_s)
        self.held_bytes = held_bytes(batch)
        self.step = 0
        self.forward_s = 0.0  # duration of the latest forward pass; on a CPU alone, where kernels run synchronously
        self._estimate_s = estimate_s
        self._first_step_s = 0.0  # device time up to the end of the first step
        self._scheduler = scheduler
        self._callbacks = callbacks
        self._pipeline = BatchPipeline(
            resident.checkpoint, batch.rows, self._after_step, resident.preview_map, scheduler.release
        )
        self.steps = self._pipeline.steps

    def execute(self) -> list[Pixels]:
        """The pictures of all rows, in order. Blocks. Raises Cancelled, and what the pipeline raises."""
        device = self.resident.checkpoint.device
        with self._scheduler.acquire(self.turn):
            self._check_cancelled()
            self.resident.checkpoint.begin_run(self.batch.key.sampling)
            self._callbacks.on_start(self)
            finish = watch_device(device, self._pipeline.draw)
        self._callbacks.on_drawn(self)
        return watch_device(device, finish)

    def _after_step(self, preview: PreviewFn) -> None:
        self.step += 1
        now = time.monotonic()
        self.forward_s = now - self.turn.since
        self.turn.remaining_s = self._remaining_s(self.turn.device_s_at(now))
        self._check_cancelled()
        for position, row in enumerate(self.batch.rows):
            number = due_preview(row.job, self.step, self.steps)
            if number is not None and row in self.active_rows and (pixels := preview(position)) is not None:
                self._callbacks.on_preview(row, number, pixels)
        self._callbacks.on_step(self)

    def _remaining_s(self, device_s: float) -> float:
        """By the mean duration of a step. The first step is left out: it includes the prompt and one-time work."""
        steps_left = max(0, self.steps - self.step)  # some pipelines round their steps up
        if self.step == 1:
            self._first_step_s = device_s
            return self._estimate_s * steps_left / self.steps
        return steps_left * (device_s - self._first_step_s) / (self.step - 1)

    def _check_cancelled(self) -> None:
        if not self.active_rows:
            raise Cancelled


def due_preview(job: ImageJob, step: int, steps: int) -> int | None:
    """The number of the preview that is due after a step, if one is. They divide the steps evenly."""
    for number in range(job.previews):
        if step == max(1, round(steps * (number + 1) / (job.previews + 1))):
            return number
    return None
