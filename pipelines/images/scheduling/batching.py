"""Jobs and their images: the order in which the waiting ones start, and the memory that each holds. Pure: no tensor, no
thread."""

from asyncio import Future
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.checkpoints.work.estimate import Speeds, work_units
from pipelines.images.scheduling.row_limits import PassShape
from pipelines.images.scheduling.scheduler import DeviceTurn
from pipelines.protocol.images import EncodedImage, Event, ImageJob

SEED_MODULUS: Final = 2**63
LAYERS: Final = "layers"  # a key of what a run showed: how many its image was taken apart into
CHECK_PREFIX: Final = "trial-"  # ids of the images that warmup draws, for nobody


@dataclass(slots=True, eq=False)
class EngineJob:
    """A job between `submit` and its last event."""

    job: ImageJob
    emit: Callable[[Event], None]
    files: dict[int, EncodedImage] = field(default_factory=dict)
    # Being encoded: each image's index, the preview's number, and its file
    previews: deque[tuple[int, int, Future[EncodedImage]]] = field(default_factory=deque)
    started: bool = False
    device_s: float = 0.0  # of its runs that have ended
    step: int = 0
    merged: bool = False  # a forward pass was shared
    found: dict[str, Any] = field(default_factory=dict)  # what its images' runs showed
    done: bool = False  # finished, failed or cancelled


@dataclass(slots=True, eq=False)
class Row:
    """Image `index` of a job, waiting or running: one row of the forward passes that it shares."""

    job: ImageJob
    index: int
    queued_at: float
    exclusive: bool = False  # with nothing else on the device: it has run out of memory beside others
    shape: PassShape | None = None  # of the passes that it begins with, once its checkpoint is loaded
    found: dict[str, Any] = field(default_factory=dict)  # JSON: what its run showed, for the file and the answer
    drawn: dict[int, Any] = field(default_factory=dict)  # by index, what another row of the job drew along
    turn: DeviceTurn = field(init=False)  # of its run, which has begun or will

    def __post_init__(self) -> None:
        self.turn = DeviceTurn(0.0, self.owner, since=self.queued_at, tier=self.job.tier)

    def start_over(self) -> None:
        """Queue the image again, since its run has ended without one. It keeps the device time that it is owed."""
        owed_s = max(0.0, self.turn.owed_s - self.turn.device_s)
        self.turn = DeviceTurn(0.0, self.owner, owed_s, since=self.queued_at, tier=self.job.tier)

    @property
    def seed(self) -> int:
        """Return the seed of the row's image: image i of a job has the job's seed + i, and layers have one."""
        return (self.job.seed + (0 if LAYERS in self.found else self.index)) % SEED_MODULUS

    @property
    def owner(self) -> str:
        """Return the owner of the row's job."""
        return self.job.owner

    @property
    def is_check(self) -> bool:
        """Return whether warmup draws it."""
        return self.job.id.startswith(CHECK_PREFIX)

    def units(self) -> float:
        """Return the work of one image of the job (pipelines.checkpoints.work.estimate)."""
        return work_units(self.job) / self.job.n

    def estimate_s(self, speeds: Speeds) -> float:
        """Return the device time that the image is expected to take."""
        return self.units() * speeds.unit_s(self.job.checkpoint)

    def held_bytes(self) -> int:
        """Return an upper bound of the bytes that the run holds between turns: latents, embeddings, references and an
        8-bit canvas.

        A canvas takes 3 bytes a pixel. Latents of 16 channels at an eighth of the side, the most in use, take a quarter
        of a float a pixel, 1 byte; a second canvas covers two such tensors and the embeddings.
        """
        images = [*self.job.references, *(control.image for control in self.job.controls)]
        references = sum(each.width_px * each.height_px * len(each.mode) for each in images)
        return self.job.width_px * self.job.height_px * 6 + references


Order = Callable[[Iterable[DeviceTurn]], Sequence[DeviceTurn]]


def start_order(
    waiting: Iterable[Row], running: Collection[DeviceTurn], speeds: Speeds, in_order: Order
) -> list[tuple[Row, int]]:
    """Order all waiting images as they are to be started, and return how many running turns go before each."""
    rows = {row.turn: row for row in waiting}
    for turn, row in rows.items():
        turn.remaining_s = row.estimate_s(speeds)
    found: list[tuple[Row, int]] = []
    ahead = 0
    for turn in in_order([*rows, *running]):
        if turn in rows:
            found.append((rows[turn], ahead))
        else:
            ahead += 1
    return found
