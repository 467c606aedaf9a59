"""How many images may share a forward pass, by checkpoint and size: bounded by latent tokens, learned from speed.

Large images fill a device alone: eight 1K images of a large model in one pass take eight times as long as one, so
that all of them wait for the last. Small ones leave most of a GPU idle. Which is which is measured: the limit grows
while an image's share of a pass gets shorter by 5 % at least.
"""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Self

from pipelines.catalog.conditioning import task_of
from pipelines.catalog.estimate import is_duration
from pipelines.catalog.plan import plan_image
from pipelines.catalog.weights import WeightsKey, weights_key
from pipelines.protocol.images import ImageJob

PATCH_PX = 16  # of a latent token: an autoencoder of factor 8, and patches of 2 x 2
MAX_TOKENS = 16384  # in a pass: four 1K images; a 2K image runs alone
FIRST_TOKENS = 8192  # before anything has been measured: two 1K images
GAIN = 0.95  # the part of its time alone that an image's share must not exceed
SAMPLES = 8  # of which the shortest counts: others include what ran beside it
MIN_SAMPLES = 3
RENEW_AFTER = 1000  # passes, after which a limit that was too slow is tried again
MAX_SHAPES = 256  # that are remembered


@dataclass(frozen=True, slots=True)
class PassShape:
    """The shape of a pipeline call's passes. Runs of equal shape are expected to share passes."""

    weights: WeightsKey
    width_px: int
    height_px: int
    references: int = 0  # that the denoiser attends to

    @classmethod
    def of_call(cls, job: ImageJob, size: tuple[int, int]) -> Self:
        """Return the shape of a job's pipeline call that draws `size`: width and height in px."""
        attended = len(job.references) if task_of(job).reads_references else 0
        return cls(weights_key(job.checkpoint), *size, attended)

    @classmethod
    def first_of(cls, job: ImageJob, multiple_px: int) -> Self:
        """Return the shape of the passes that a sample of the job begins with. `multiple_px` is the checkpoint's."""
        plan = plan_image(job.checkpoint, job.width_px, job.height_px, multiple_px)
        return cls.of_call(job, (plan.width, plan.height))

    @property
    def tokens(self) -> int:
        """Return the latent tokens of an image, its references included."""
        return max(1, self.width_px * self.height_px * (1 + self.references) // PATCH_PX**2)


@dataclass(slots=True)
class _Learned:
    reduced: int | None = None  # after running out of memory
    passes: int = 0
    seconds: dict[int, deque[float]] = field(default_factory=dict)  # of latest passes, by images in the pass

    def image_s(self) -> dict[int, float]:
        """Return an image's share of a pass in seconds, by images in the pass, where it was measured often enough."""
        return {rows: min(times) / rows for rows, times in sorted(self.seconds.items()) if len(times) >= MIN_SAMPLES}


class RowLimits:
    """Limits of the images that share a pass, learned from measured times. Thread-safe. `most_rows` bounds every
    limit."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._learned: dict[PassShape, _Learned] = {}
        self._lock = threading.Lock()

    def most(self, shape: PassShape | None) -> int:
        """Return the number of images that `of` will never exceed. It is 1 where the catalog file wants exact images,
        or the checkpoint caches steps: a cache keeps its states by run."""
        if shape is None or shape.weights.runtime.batch == "exact" or shape.weights.runtime.cache is not None:
            return 1
        return max(1, min(shape.weights.runtime.max_batch or self._most_rows, MAX_TOKENS // shape.tokens))

    def of(self, shape: PassShape | None) -> int:
        """Return the number of images that may share a pass now."""
        most = self.most(shape)
        if most == 1 or shape is None:
            return 1
        with self._lock:
            learned = self._find(shape)
            if learned.reduced is not None:
                most = min(most, learned.reduced)
            measured = learned.image_s()
            if not measured.keys() - {1}:
                return min(most, max(2, FIRST_TOKENS // shape.tokens))
            best = min(measured)
            for rows, seconds in measured.items():
                if seconds <= GAIN * measured[best]:
                    best = rows
            return min(most, 2 * best if best == max(measured) else best)

    def record(self, shape: PassShape | None, rows: int, elapsed_s: float) -> None:
        """Record that a pass for `rows` images took so long."""
        if shape is None or not is_duration(elapsed_s):
            return
        with self._lock:
            learned = self._find(shape)
            learned.seconds.setdefault(rows, deque(maxlen=SAMPLES)).append(elapsed_s)
            learned.passes += 1
            if learned.passes % RENEW_AFTER == 0:
                learned.seconds.clear()

    def halve(self, shape: PassShape | None, rows: int) -> None:
        """Note that a pass for `rows` images ran out of memory. It counts for good: the memory will be as short next
        time."""
        if shape is not None:
            with self._lock:
                self._find(shape).reduced = max(1, rows // 2)

    def _find(self, shape: PassShape) -> _Learned:
        if shape not in self._learned and len(self._learned) == MAX_SHAPES:
            del self._learned[next(iter(self._learned))]  # the one that came first
        return self._learned.setdefault(shape, _Learned())
