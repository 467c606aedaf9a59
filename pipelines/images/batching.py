"""Which rows form a batch. Pure: no tensor, no thread.

A row is one picture of one job. Rows with equal keys can share every forward pass; each has its own prompt, seed,
reference and mask.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pipelines.catalog.conditioning import Task, task_of
from pipelines.catalog.estimate import Speeds, work_units
from pipelines.protocol.images import CheckpointSpec, ImageJob, Sampling


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What the rows of a batch have in common."""

    checkpoint: CheckpointSpec
    width_px: int
    height_px: int
    sampling: Sampling  # whole, except the fields in which rows may differ: see batch_key
    has_negative_prompt: bool  # pipelines take one for every row or for none
    task: Task
    shared_references: str | None  # the job's id, where the pipeline call takes references for all rows at once


@dataclass(slots=True, eq=False)
class Row:
    """Picture `index` of a job, waiting or running."""

    job: ImageJob
    index: int
    queued_at: float
    alone: bool = False  # in a batch of its own: a batch with it has failed
    exclusive: bool = False  # and with nothing else on the device: it has run out of memory in a batch of its own

    @property
    def key(self) -> BatchKey:
        return batch_key(self.job)


def batch_key(job: ImageJob) -> BatchKey:
    """The key of every row of a job. A sampling field that is not exempt here separates rows."""
    task = task_of(job)
    sampling = replace(job.sampling, negative_prompt="")  # each row has its own
    if task.starts_from_noise:
        sampling = replace(sampling, strength=1.0)  # it has no effect
    return BatchKey(
        checkpoint=job.checkpoint,
        width_px=job.width_px,
        height_px=job.height_px,
        sampling=sampling,
        has_negative_prompt=bool(job.sampling.negative_prompt),
        task=task,
        shared_references=job.id if task.reads_references or len(job.references) > 1 else None,
    )


@dataclass(slots=True)
class BatchLimits:
    """How many rows a batch may have, by checkpoint and size. Running out of memory halves a limit for good."""

    max_rows: int
    _reduced: dict[tuple[CheckpointSpec, int, int], int] = field(default_factory=dict)

    def of(self, key: BatchKey) -> int:
        """The limit of a key, from the catalog's `max_batch` where it has one. A first-block cache decides for a whole
        batch whether to skip a step, so with it each picture is drawn alone.
        """
        runtime = key.checkpoint.runtime
        if runtime.cache is not None and runtime.cache.method == "first-block":
            return 1
        limit = runtime.max_batch or self.max_rows
        return min(limit, self._reduced.get(_checkpoint_and_size(key), limit))

    def halve(self, key: BatchKey, rows: int) -> None:
        """A batch of `rows` has run out of memory."""
        self._reduced[_checkpoint_and_size(key)] = max(1, rows // 2)


def _checkpoint_and_size(key: BatchKey) -> tuple[CheckpointSpec, int, int]:
    return key.checkpoint, key.width_px, key.height_px


@dataclass(frozen=True, slots=True)
class Batch:
    """One row or more, of one key."""

    key: BatchKey
    rows: tuple[Row, ...]

    @property
    def queued_at(self) -> float:
        return min(row.queued_at for row in self.rows)

    @property
    def exclusive(self) -> bool:
        """Whether nothing else may be on the device with it."""
        return any(row.exclusive for row in self.rows)

    def units(self) -> float:
        """The work of all rows (pipelines.catalog.estimate)."""
        return sum(work_units(row.job) / row.job.n for row in self.rows)


def form_batches(waiting: Iterable[Row], limits: BatchLimits, speeds: Speeds, now: float) -> Sequence[Batch]:
    """All waiting rows as batches, in the order in which to start them.

    Least work first. But batches that have waited longer than their own work takes come before, longest wait first.
    """
    groups: dict[object, list[Row]] = {}
    for row in waiting:
        groups.setdefault(id(row) if row.alone or row.exclusive else row.key, []).append(row)
    batches: list[Batch] = []
    for rows in groups.values():
        key = rows[0].key
        limit = limits.of(key)
        batches += [Batch(key, tuple(rows[start : start + limit])) for start in range(0, len(rows), limit)]

    def order(batch: Batch) -> tuple[bool, float]:
        work_s = batch.units() * speeds.unit_s(batch.key.checkpoint)
        waited_s = now - batch.queued_at
        return (False, -waited_s) if waited_s > work_s else (True, work_s)

    return sorted(batches, key=order)


def held_bytes(batch: Batch) -> int:
    """Upper bound of what a run holds between turns: latents, embeddings, references and an 8-bit canvas for each row.

    A canvas takes 3 bytes a pixel. Latents of 16 channels at an eighth of the side, the most in use, take a quarter of
    a float a pixel, 1 byte; a second canvas covers two such tensors and the embeddings.
    """
    job = batch.rows[0].job
    pictures = [picture for row in batch.rows for picture in row.job.references]
    references = sum(picture.width_px * picture.height_px * len(picture.mode) for picture in pictures)
    return len(batch.rows) * job.width_px * job.height_px * 6 + references
