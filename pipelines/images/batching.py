"""Which pictures are drawn together. Pure: no tensor, no thread.

A row is one picture of one job. Rows whose keys are equal can share every forward pass; each keeps its own prompt,
seed, reference and mask.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipelines.catalog.estimate import Speeds, work_units
from pipelines.protocol.images import CheckpointSpec, ImageJob


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What rows must have in common to be drawn together."""

    checkpoint: CheckpointSpec
    width_px: int
    height_px: int
    steps: int
    guidance: float
    guided_away: bool  # whether there is a negative prompt: pipelines take one for every row or for none
    strength: float | None
    masked: bool
    shared_references: str | None  # native references belong to the call, so only rows of one job share it
    loras: tuple[tuple[str, float], ...]


@dataclass(slots=True, eq=False)
class Row:
    """Picture `index` of a job, waiting or being drawn. `alone` once a batch with it has failed."""

    job: ImageJob
    index: int
    since: float  # when it began to wait
    alone: bool = False
    exclusive: bool = False  # only with nothing else on the device: it has run out of memory alone

    @property
    def key(self) -> BatchKey:
        """What it may be batched by."""
        return batch_key(self.job)


def batch_key(job: ImageJob) -> BatchKey:
    """The key of every row of a job."""
    native = job.checkpoint.conditioning == "native" and job.mask is None
    return BatchKey(
        checkpoint=job.checkpoint,
        width_px=job.width_px,
        height_px=job.height_px,
        steps=job.steps,
        guidance=job.guidance,
        guided_away=bool(job.negative_prompt),
        strength=job.strength if job.references and not native else None,
        masked=job.mask is not None,
        shared_references=job.id if job.references and (native or len(job.references) > 1) else None,
        loras=job.loras,
    )


@dataclass(slots=True)
class Bounds:
    """How many rows a batch may have, by checkpoint and size. Running out of memory halves a bound for good."""

    most: int
    _learned: dict[tuple[CheckpointSpec, int, int], int] = field(default_factory=dict)

    def of(self, key: BatchKey) -> int:
        """The bound of a key; the catalog's `max_batch` where it has one."""
        most = key.checkpoint.runtime.max_batch or self.most
        return min(most, self._learned.get(_place(key), most))

    def halve(self, key: BatchKey, rows: int) -> None:
        """`rows` were too many."""
        self._learned[_place(key)] = max(1, rows // 2)


def _place(key: BatchKey) -> tuple[CheckpointSpec, int, int]:
    return key.checkpoint, key.width_px, key.height_px


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one key, at least one."""

    key: BatchKey
    rows: tuple[Row, ...]

    @property
    def since(self) -> float:
        """When its first row began to wait."""
        return min(row.since for row in self.rows)

    @property
    def exclusive(self) -> bool:
        """Whether it must have the device to itself."""
        return any(row.exclusive for row in self.rows)

    def units(self) -> float:
        """The work of all rows."""
        return sum(work_units(row.job) / row.job.n for row in self.rows)


def form_batches(waiting: Iterable[Row], bounds: Bounds, speeds: Speeds, now: float) -> Sequence[Batch]:
    """Every batch that the waiting rows could make, the one to start first in front.

    Least work first, except that what has waited longer than its own work takes comes before, longest wait first.
    """
    groups: dict[object, list[Row]] = {}
    for row in waiting:
        groups.setdefault(id(row) if row.alone or row.exclusive else row.key, []).append(row)
    batches: list[Batch] = []
    for rows in groups.values():
        key = rows[0].key
        bound = bounds.of(key)
        batches += [Batch(key, tuple(rows[start : start + bound])) for start in range(0, len(rows), bound)]

    def order(batch: Batch) -> tuple[bool, float]:
        work_s = batch.units() * speeds.unit_s(batch.key.checkpoint)
        waited_s = now - batch.since
        return (False, -waited_s) if waited_s > work_s else (True, work_s)

    return sorted(batches, key=order)


def held_bytes(batch: Batch) -> int:
    """What a run holds between turns, at most: latents and embeddings, references, and an 8-bit canvas for each row.

    Latents take up to two numbers of four bytes for each pixel's worth of a canvas byte or less in every codec in use
    (16 channels at an eighth of the side: a quarter of a number a pixel), so one canvas more covers them.
    """
    job = batch.rows[0].job
    references = sum(len(picture.data) for row in batch.rows for picture in row.job.references)
    return len(batch.rows) * job.width_px * job.height_px * 6 + references
