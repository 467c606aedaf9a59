"""The two autoencoders' decoders, trained on cuttings of rendered scenes. Their encoders are set (averages, cosines).

A little noise on the latents makes a decoder forgive what a generator draws inexactly.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from starters.training.loop import Run, Schedule, channels_last, device, fast_math
from starters.training.pictures import picture, rng_for

NOISE: Final = 0.06
POOL: Final = (400, 1500)  # full-sized and small pictures that cuttings are taken from
HELD: Final = 100  # pictures that are open at a time, exchanged bit by bit
LOOKS: Final = 4  # cuttings looked at to find one with something in it
LEARNED: Final = ("decoder", "post_quant_conv")  # parts of a codec

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a codec is fed."""

    side_px: int
    batch: int


class Cuttings:
    """Square parts of pictures, busy ones more often: most of a poster is empty."""

    def __init__(self, folder: Path, cut: Cut) -> None:
        self.folder, self.cut = folder, cut
        self._held: dict[int, Pixels] = {}

    def batch(self, step: int) -> Tensor:
        """Pixels of this step from -1 to 1, (batch, 3, side, side)."""
        rng = rng_for(3, step)
        cuttings = np.stack([self._cutting(rng, step) for _ in range(self.cut.batch)])
        return torch.from_numpy(cuttings).permute(0, 3, 1, 2).float().div(127.5).sub(1)

    def _cutting(self, rng: np.random.Generator, step: int) -> Pixels:
        window = step // 4  # the pictures that are open move on with the steps, the same in every run
        pixels = self._picture((window + int(rng.integers(HELD))) % sum(POOL))
        side = self.cut.side_px
        looks = []
        for _ in range(LOOKS if rng.random() < 0.75 else 1):
            top = int(rng.integers(pixels.shape[0] - side + 1))
            left = int(rng.integers(pixels.shape[1] - side + 1))
            looks.append(pixels[top : top + side, left : left + side])
        return max(looks, key=lambda look: float(look[::4, ::4].std(axis=(0, 1)).sum()))

    def _picture(self, place: int) -> Pixels:
        if place not in self._held:
            if len(self._held) > 2 * HELD:
                self._held.pop(next(iter(self._held)))
            whole = place * POOL[0] // sum(POOL)  # one full-sized picture among several small ones
            is_full = whole != (place - 1) * POOL[0] // sum(POOL)
            made = picture(self.folder, "full", whole) if is_full else picture(self.folder, "small", place - whole)
            self._held[place] = np.asarray(made)
        return self._held[place]


def encode(codec: nn.Module, pixels: Tensor) -> Tensor:
    """Latents as the pipelines take them, (batch, channels, height, width)."""
    coded: Any = codec.encode(pixels)  # type: ignore[operator]
    latents: Tensor = coded.latents if hasattr(coded, "latents") else coded.latent_dist.mode()
    return latents


def decode(codec: nn.Module, latents: Tensor) -> Tensor:
    """Pixels from -1 to 1."""
    pixels: Tensor = codec.decode(latents).sample  # type: ignore[operator]
    return pixels


def decoder_of(codec: nn.Module) -> dict[str, Tensor]:
    """The weights that are learned."""
    return {name: value for name, value in codec.state_dict().items() if name.startswith(LEARNED)}


def train_decoder(folder: Path, name: str, codec: nn.Module, schedule: Schedule, cut: Cut, until: float) -> Run:
    """The decoder's run, as far as it got. The latents stay what generators were trained on."""
    for part, parameters in codec.named_parameters():
        parameters.requires_grad_(part.startswith(LEARNED))
    where = device()
    run = Run(folder / f"{name}.pt", channels_last(codec.to(where)), schedule)
    run.train(partial(_loss, run.model, Cuttings(folder, cut)), until)
    return run


def _loss(codec: nn.Module, cuttings: Cuttings, step: int) -> Tensor:
    where = device()
    pixels = cuttings.batch(step).to(where, memory_format=torch.channels_last)
    with torch.no_grad():
        latents = encode(codec, pixels)
        latents += NOISE * latents.std() * torch.randn_like(latents)
    with fast_math(where):
        drawn = decode(codec, latents).float()
    return functional.l1_loss(drawn, pixels) + functional.mse_loss(drawn, pixels)


def as_pixels(image: Image.Image) -> Tensor:
    """From -1 to 1, (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(127.5).sub(1)
