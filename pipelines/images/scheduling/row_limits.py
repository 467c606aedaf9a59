"""How many images may share a forward pass, by checkpoint and size: bounded by latent tokens, learned from cost.

Large images fill a device alone: eight 1K images of a large model in one pass take eight times as long as one, so
that all of them wait for the last. Small ones leave most of a GPU idle. Which is which is measured, by what a pass
costs this process: seconds of a GPU, by its own events, or seconds of the processor. What else runs on the machine
changes neither by much, and the median of several passes counts.

Sharing must pay for itself twice. An image's part of a pass is shorter by 5 % at least. And callers who would have
been first in a queue do not wait for the others in vain: with `r` of `n` equal images in a pass, each of which costs
`g` of one alone, they end on average after `g * (n + r) / 2` times one image, and in a queue after `(n + 1) / 2`. The
first must not exceed the second. Where no number of images does both, they are drawn one after another.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Self

from pipelines.checkpoints.work.estimate import WeightsKey, is_duration, weights_key
from pipelines.checkpoints.work.plan import plan_job, task_of
from pipelines.protocol.images import ImageJob

PATCH_PX = 16  # of a latent token: an autoencoder of factor 8, and patches of 2 x 2
MAX_TOKENS = 16384  # in a pass: four 1K images; a 2K image runs alone
FIRST_TOKENS = 8192  # before anything has been measured: two 1K images
GAIN = 0.95  # the part of its time alone that an image's share must not exceed
SAMPLES = 9  # of which the median counts
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
    alone: bool = False  # of a job that wants no pass shared

    @classmethod
    def of_call(cls, job: ImageJob, size: tuple[int, int]) -> Self:
        """Return the shape of a job's pipeline call that draws `size`: width and height in px."""
        attended = len(job.references) if task_of(job).reads_references else 0
        return cls(weights_key(job.checkpoint), *size, attended, job.sampling.batch == "exact")

    @classmethod
    def first_of(cls, job: ImageJob, multiple_px: int) -> Self:
        """Return the shape of the passes that a sample of the job begins with. `multiple_px` is the checkpoint's."""
        plan = plan_job(job, multiple_px)
        first = plan.tiles[0] if plan.finish == "enlarge" else plan
        return cls.of_call(job, (first.width, first.height))

    @property
    def tokens(self) -> int:
        """Return the latent tokens of an image, its references included."""
        return max(1, self.width_px * self.height_px * (1 + self.references) // PATCH_PX**2)


@dataclass(frozen=True, slots=True)
class Passes:
    """Measured times of passes of one shape and number of images, in seconds, as they are stored."""

    width_px: int
    height_px: int
    references: int
    rows: int
    seconds: tuple[float, ...]


@dataclass(slots=True)
class _Learned:
    reduced: int | None = None  # after running out of memory
    passes: int = 0
    seconds: dict[int, deque[float]] = field(default_factory=dict)  # of latest passes, by images in the pass

    def image_s(self) -> dict[int, float]:
        """Return an image's share of a pass, by images in the pass, where it was measured often enough."""
        return {rows: median(times) / rows for rows, times in sorted(self.seconds.items()) if len(times) >= MIN_SAMPLES}

    def best(self, equal: int) -> int:
        """Return how many of `equal` images that are there should share a pass: a number that was measured, or 1."""
        image_s, best = self.image_s(), 1
        for rows, seconds in image_s.items():
            in_queue_s = image_s[1] * (equal + 1)
            if rows <= equal and seconds <= GAIN * image_s[best] and seconds * (equal + rows) <= in_queue_s:
                best = rows
        return best


class RowLimits:
    """Limits of the images that share a pass, learned from measured times. Thread-safe. `most_rows` bounds every
    limit."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._learned: dict[PassShape, _Learned] = {}
        self._equal: Mapping[PassShape | None, int] = {}
        self._measured_anew: set[WeightsKey] = set()
        self._lock = threading.Lock()

    def expect(self, shapes: Iterable[PassShape | None]) -> None:
        """Set how many images run or wait now, given the shape of each one's passes."""
        self._equal = Counter(shapes)

    def most(self, shape: PassShape | None) -> int:
        """Return the number of images that `of` will never exceed. It is 1 where the request or the catalog file wants
        exact images, or the checkpoint caches steps: a cache keeps its states by run."""
        if shape is None or shape.alone or shape.weights.runtime.batch == "exact":
            return 1
        if shape.weights.runtime.cache is not None:
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
            if 1 not in measured:  # what is shared is compared with an image alone
                return 1 if measured else min(most, max(2, FIRST_TOKENS // shape.tokens))
            best = learned.best(max(2, self._equal.get(shape, 0)))
            return min(most, 2 * best if best == max(measured) else best)

    def record(self, shape: PassShape | None, rows: int, seconds: float) -> None:
        """Record that a pass for `rows` images has cost so much."""
        if shape is None or shape.alone or not is_duration(seconds):
            return
        with self._lock:
            learned = self._find(shape)
            times = learned.seconds.setdefault(rows, deque(maxlen=SAMPLES))
            enough = len(times) in {MIN_SAMPLES - 1, SAMPLES - 1}
            times.append(seconds)
            learned.passes += 1
            if enough or learned.passes % RENEW_AFTER == 0:
                self._measured_anew.add(shape.weights)
            if learned.passes % RENEW_AFTER == 0:
                learned.seconds.clear()

    def has_new_measurements(self, weights: WeightsKey) -> bool:
        """Return whether there are new measurements of a checkpoint since the last call."""
        with self._lock:
            known = weights in self._measured_anew
            self._measured_anew.discard(weights)
            return known

    def export(self, weights: WeightsKey) -> list[Passes]:
        """Return what was measured of a checkpoint's passes, for `restore`."""
        with self._lock:
            return [
                Passes(shape.width_px, shape.height_px, shape.references, rows, tuple(times))
                for shape, learned in self._learned.items()
                if shape.weights == weights
                for rows, times in learned.seconds.items()
            ]

    def restore(self, weights: WeightsKey, measured: Sequence[Passes]) -> None:
        """Begin with what an earlier process has measured of a checkpoint, where this one has measured nothing."""
        with self._lock:
            known = set(self._learned)
            for each in measured:
                shape = PassShape(weights, each.width_px, each.height_px, each.references)
                if shape not in known:
                    self._find(shape).seconds[each.rows] = deque(each.seconds, maxlen=SAMPLES)

    def halve(self, shape: PassShape | None, rows: int) -> None:
        """Limit passes of this shape to half of `rows` images, since one of `rows` ran out of memory. The limit stays:
        the memory will be as short next time."""
        if shape is not None:
            with self._lock:
                self._find(shape).reduced = max(1, rows // 2)

    def _find(self, shape: PassShape) -> _Learned:
        if shape not in self._learned and len(self._learned) == MAX_SHAPES:
            del self._learned[next(iter(self._learned))]  # the one that came first
        return self._learned.setdefault(shape, _Learned())
