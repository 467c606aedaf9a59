"""Pictures that wait to start: in which order they do, and what each holds. Pure: no tensor, no thread."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.catalog.estimate import Speeds, work_units
from pipelines.images.fairness import rank
from pipelines.images.scheduler import DeviceTurn
from pipelines.protocol.images import ImageJob


@dataclass(slots=True, eq=False)
class Row:
    """Picture `index` of a job, waiting or running: one row of the forward passes that it shares."""

    job: ImageJob
    index: int
    queued_at: float
    exclusive: bool = False  # with nothing else on the device: it has run out of memory beside others

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.job.owner

    def units(self) -> float:
        """Its work (pipelines.catalog.estimate)."""
        return work_units(self.job) / self.job.n

    def held_bytes(self) -> int:
        """Upper bound of what its run holds between turns: latents, embeddings, references and an 8-bit canvas.

        A canvas takes 3 bytes a pixel. Latents of 16 channels at an eighth of the side, the most in use, take a quarter
        of a float a pixel, 1 byte; a second canvas covers two such tensors and the embeddings.
        """
        pictures = [*self.job.references, *(control.picture for control in self.job.controls)]
        references = sum(each.width_px * each.height_px * len(each.mode) for each in pictures)
        return self.job.width_px * self.job.height_px * 6 + references


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting picture, and its rank: how far back it is, in seconds of the device (pipelines.images.fairness)."""

    row: Row
    work_s: float
    rank_s: float
    goes_first: bool  # before all that run


def start_order(
    waiting: Iterable[Row], running: Iterable[DeviceTurn], speeds: Speeds, used_s: Mapping[str, float], now: float
) -> Sequence[Candidate]:
    """All waiting pictures, in the order in which to start them: the lowest rank first, less the time that it has
    waited, so that none waits for ever.
    """
    work: dict[Row | DeviceTurn, float] = {turn: turn.remaining_s for turn in running}
    work |= {row: row.units() * speeds.unit_s(row.job.checkpoint) for row in waiting}
    ranked = rank(work, lambda item: item.owner, work.__getitem__, used_s)
    lowest_running = min((rank_s for rank_s, item in ranked if isinstance(item, DeviceTurn)), default=math.inf)
    candidates = [
        Candidate(item, work[item], rank_s, goes_first=rank_s < lowest_running)
        for rank_s, item in ranked
        if isinstance(item, Row)
    ]
    return sorted(candidates, key=lambda each: each.rank_s - (now - each.row.queued_at))
