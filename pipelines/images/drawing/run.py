"""One image on the device: the work of its thread."""

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.device.attention import attention_identity
from pipelines.device.failures import Cancelled, watch_device
from pipelines.images.denoising.step_observer import Pixels, PreviewFn
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint_cache import LoadedCheckpoint
from pipelines.images.scheduling.batching import Row
from pipelines.images.scheduling.row_limits import PassShape
from pipelines.images.scheduling.scheduler import DeviceScheduler
from pipelines.protocol.images import ImageJob


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """The functions that a run calls on its thread."""

    on_start: Callable[["Run"], None]
    on_step: Callable[["Run"], None]
    on_drawn: Callable[["Run"], None]  # it no longer needs the device
    on_preview: Callable[[Row, int, Pixels], None]


class Run:
    """A started image. It ends before its next step once it is `cancelled`."""

    def __init__(self, row: Row, loaded: LoadedCheckpoint, scheduler: DeviceScheduler, callbacks: RunCallbacks) -> None:
        self.row = row
        self.loaded = loaded
        self.cancelled = False
        self.step = 0
        self.last_step_s = 0.0  # device time of the latest step; on a CPU alone, where kernels run synchronously
        self._stepped_s = 0.0  # device time up to its end
        self._estimate_s = row.turn.remaining_s
        self._first_step_s = 0.0  # device time up to the end of the first step
        self._scheduler = scheduler
        self._callbacks = callbacks
        self._pipeline = ImagePipeline(
            loaded.checkpoint, row, self._after_step, loaded.preview_map, scheduler.release, self._begin_call
        )
        self.steps = self._pipeline.steps
        self.turn = row.turn
        self.turn.shape = PassShape.first_of(row.job, loaded.checkpoint.multiple_px)

    @property
    def is_refined(self) -> bool:
        """Return whether the image has a second pass."""
        return self._pipeline.plan.finish == "refine"

    def execute(self) -> Pixels:
        """Draw the image and return it. Blocks. Raises Cancelled, Preempted, and the pipeline's errors."""
        checkpoint, job = self.loaded.checkpoint, self.row.job
        device = checkpoint.device
        checkpoint.read_adapters(job.sampling, job.controls)
        with self._scheduler.acquire(self.turn):
            self._check_cancelled()
            self.row.found |= {"drawn_by": {**checkpoint.identity, **attention_identity()}}
            self.row.found |= watch_device(device, checkpoint.begin_run, job.sampling, job.controls)
            checkpoint.adapters.drawing.add(self)
            try:
                self._callbacks.on_start(self)
                finish = watch_device(device, self._draw)
            finally:
                checkpoint.adapters.drawing.discard(self)
        self._callbacks.on_drawn(self)
        watch_device(device, self._scheduler.await_launched, self.turn)
        return watch_device(device, finish)

    def _draw(self) -> Callable[[], Pixels]:
        finish = self._pipeline.draw()
        self._scheduler.mark_launched()
        return finish

    def _begin_call(self, size: tuple[int, int]) -> None:
        self.turn.shape, self.turn.in_prologue = PassShape.of_call(self.row.job, size), True

    def _after_step(self, preview: PreviewFn) -> None:
        self.step += 1
        device_s = self.turn.device_s_at(self._scheduler.clock())
        self.last_step_s, self._stepped_s = device_s - self._stepped_s, device_s
        self.turn.remaining_s = self._remaining_s(device_s)
        self._check_cancelled()
        number = due_preview(self.row.job, self.step, self.steps)
        if number is not None and (pixels := preview()) is not None:
            self._callbacks.on_preview(self.row, number, pixels)
        self._callbacks.on_step(self)

    def _remaining_s(self, device_s: float) -> float:
        """Return the seconds that the run still needs, by the mean duration of a step. The first step is left out: it
        includes the prompt and one-time work."""
        steps_left = max(0, self.steps - self.step)  # some pipelines round their steps up
        if self.step == 1:
            self._first_step_s = device_s
            return self._estimate_s * steps_left / self.steps
        return steps_left * (device_s - self._first_step_s) / (self.step - 1)

    def _check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled


def due_preview(job: ImageJob, step: int, steps: int) -> int | None:
    """Return the number of the preview that is due after a step, if one is. They divide the steps evenly."""
    due = [max(1, round(steps * (number + 1) / (job.previews + 1))) for number in range(job.previews)]
    return due.index(step) if step in due else None
