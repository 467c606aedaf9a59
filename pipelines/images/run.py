"""One batch on the device: what happens on its thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.device.failures import Cancelled
from pipelines.images.batching import Batch, Row, held_bytes
from pipelines.images.pipeline import Drawing, Look, Pixels
from pipelines.images.residency import Resident
from pipelines.images.scheduler import Turn, Turns
from pipelines.protocol.images import ImageJob


@dataclass(frozen=True, slots=True)
class Reports:
    """Whom a run tells what, from its own thread."""

    started: Callable[["Run"], None]
    stepped: Callable[["Run"], None]
    previewed: Callable[[Row, int, Pixels], None]


class Run:
    """A batch that has been started. Its rows are struck out when nobody wants them; it ends when none are left."""

    def __init__(self, batch: Batch, resident: Resident, turns: Turns, estimate_s: float, reports: Reports) -> None:
        self.batch = batch
        self.resident = resident
        self.wanted = set(batch.rows)
        self.turn = Turn(remaining_s=estimate_s)
        self.held_bytes = held_bytes(batch)
        self.step = 0
        self.forward_s = 0.0  # what the latest step's forward pass took, where computing is not left to a device
        self._estimate_s = estimate_s
        self._began_s = 0.0  # device time up to the end of the first step
        self._turns = turns
        self._reports = reports
        self._drawing = Drawing(resident.seen_as(batch.key.checkpoint), batch.rows, self._after_step, resident.previews)
        self.steps = self._drawing.steps

    def draw(self) -> list[Pixels]:
        """The pictures of all rows, in order. Blocks for its turns. Raises what the pipeline raises, and Cancelled."""
        with self._turns.hold(self.turn):
            self._go_on()
            self._drawing.checkpoint.begin_run(self.batch.key.loras)
            self._reports.started(self)
            return self._drawing.draw()

    def _after_step(self, look: Look) -> None:
        self.step += 1
        now = time.monotonic()
        self.forward_s = now - self.turn.since
        self.turn.remaining_s = self._remaining_s(self.turn.device_s_at(now))
        self._go_on()
        for position, row in enumerate(self.batch.rows):
            number = due_preview(row.job, self.step, self.steps)
            if number is not None and row in self.wanted and (pixels := look(position)) is not None:
                self._reports.previewed(row, number, pixels)
        self._reports.stepped(self)

    def _remaining_s(self, device_s: float) -> float:
        """By what a step takes. Not by the first one, before which the prompt is read and much happens only once."""
        left = max(0, self.steps - self.step)  # some pipelines round their steps up
        if self.step == 1:
            self._began_s = device_s
            return self._estimate_s * left / self.steps
        return left * (device_s - self._began_s) / (self.step - 1)

    def _go_on(self) -> None:
        if not self.wanted:
            raise Cancelled


def due_preview(job: ImageJob, step: int, steps: int) -> int | None:
    """Which preview of a picture is due after a step, if one is: they part the steps into equal stretches."""
    for number in range(job.previews):
        if step == max(1, round(steps * (number + 1) / (job.previews + 1))):
            return number
    return None
