"""What the training of both generators has in common: pictures that grow, captions, and what counts in a picture."""

from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from starters.training.loop import Schedule
from starters.training.pictures import rng_for
from starters.world.captions import caption
from starters.world.scene import Scene
from starters.world.split import text_split

SPREAD: Final = {"quarter": 4, "half": 2, "full": 1}  # pixels of a full-sized picture for one of these, along a side
OBJECTS: Final = 6.0  # how much more a place counts that is unlike the sky or the ground around it
Size = tuple[int, int]  # width and height in pixels


@dataclass(frozen=True, slots=True)
class Stage:
    """A generator's training on pictures of this kind, so many at a time. Small pictures teach as much in less time."""

    kind: Literal["quarter", "half", "full"]
    batch: int
    schedule: Schedule

    @property
    def spread(self) -> int:
        """How many pixels of a full-sized picture one of these stands for, along a side."""
        return SPREAD[self.kind]

    def sizes(self, full: tuple[Size, ...], grain_px: int, shortest: int = 1) -> list[Size]:
        """Those of the full sizes that this stage can draw reduced, with sides of whole grains and not too few."""
        grain = grain_px * self.spread
        return [
            (width // self.spread, height // self.spread)
            for width, height in full
            if width % grain == height % grain == 0 and min(width, height) >= shortest * grain
        ]


def train_caption(scene: Scene, *key: int) -> str:
    """A wording of the scene that is not held out."""
    rng = rng_for(*key)
    while True:
        text = caption(scene, rng).text
        if text_split(text) == "train":
            return text


def standing_out(values: Tensor, far: float) -> Tensor:
    """How much each place of (n, c, h, w) counts, (n, 1, h, w): more where it is unlike its row, most from `far` on.

    Skies and grounds fill their rows. Without this, objects, which are small, are learned long after them.
    """
    return 1 + OBJECTS * unlike(values, values.median(dim=3, keepdim=True).values, far)


def unlike(values: Tensor, others: Tensor, far: float) -> Tensor:
    """How far each place of (n, c, h, w) is from the other picture's, (n, 1, h, w), from 0 to 1 at `far` and beyond."""
    away: Tensor = (values - others).square().mean(1, keepdim=True).sqrt() / far
    return away.clamp(max=1)
