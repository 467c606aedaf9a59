"""What the training of both generators shares: stages of growing resolution, captions, and loss weights."""

from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from starters.training.dataset import rng_for
from starters.training.loop import Schedule
from starters.world.captions import caption
from starters.world.scene import Scene
from starters.world.split import text_split

DOWNSCALE: Final = {"quarter": 4, "half": 2, "full": 1}  # along a side, against a full-sized image
CONTRAST_WEIGHT: Final = 6.0  # extra loss weight of a place that differs from the sky or ground around it
Size = tuple[int, int]  # width and height in pixels


@dataclass(frozen=True, slots=True)
class Stage:
    """A generator's training at one resolution. Small images teach as much in less time."""

    kind: Literal["quarter", "half", "full"]
    batch: int
    schedule: Schedule

    @property
    def downscale(self) -> int:
        return DOWNSCALE[self.kind]

    def sizes(self, full: tuple[Size, ...], multiple_px: int, min_multiples: int = 1) -> list[Size]:
        """The full sizes that this stage can draw, downscaled: sides must be `min_multiples` multiples or more."""
        multiple = multiple_px * self.downscale
        return [
            (width // self.downscale, height // self.downscale)
            for width, height in full
            if width % multiple == height % multiple == 0 and min(width, height) >= min_multiples * multiple
        ]


def train_caption(scene: Scene, *key: int) -> str:
    """A caption of the scene that is not held out."""
    rng = rng_for(*key)
    while True:
        text = caption(scene, rng).text
        if text_split(text) == "train":
            return text


def contrast_weights(values: Tensor, far: float) -> Tensor:
    """Loss weights (n, 1, h, w) of latents (n, c, h, w): larger where a place differs from its row's median.

    Skies and grounds fill their rows. Without these weights, objects, which are small, are learned long after them.
    """
    return 1 + CONTRAST_WEIGHT * distance(values, values.median(dim=3, keepdim=True).values, far)


def distance(values: Tensor, others: Tensor, far: float) -> Tensor:
    """The distance (n, 1, h, w) of two latents (n, c, h, w) at each place: RMS over `far`, at most 1."""
    apart: Tensor = (values - others).square().mean(1, keepdim=True).sqrt() / far
    return apart.clamp(max=1)
