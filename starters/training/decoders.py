"""Training of the two autoencoders' decoders on crops of rendered scenes. Their encoders are fixed.

A little noise on the latents makes a decoder tolerate the inexact latents of a generator.
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

from starters.training.dataset import image, rng_for
from starters.training.loop import Run, Schedule, channels_last, device, mixed_precision

NOISE: Final = 0.06
POOL_SIZES: Final = (400, 1500)  # full-sized and small images that crops are taken from
OPEN_IMAGES: Final = 100  # images in memory at a time, replaced one by one
CROP_CANDIDATES: Final = 4  # crops to choose from: the one with the most contrast is used
TRAINED_PARTS: Final = ("decoder", "post_quant_conv")  # parts of a codec

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CropConfig:
    """The size and number of crops in a step."""

    side_px: int
    batch: int


class CropSampler:
    """Square crops, mostly of busy parts: most of a poster is empty."""

    def __init__(self, folder: Path, crop: CropConfig) -> None:
        self.folder, self.crop = folder, crop
        self._open_images: dict[int, Pixels] = {}

    def batch(self, step: int) -> Tensor:
        """Pixels of this step, -1 to 1, (batch, 3, side, side)."""
        rng = rng_for(3, step)
        crops = np.stack([self._crop(rng, step) for _ in range(self.crop.batch)])
        return torch.from_numpy(crops).permute(0, 3, 1, 2).float().div(127.5).sub(1)

    def _crop(self, rng: np.random.Generator, step: int) -> Pixels:
        window = step // 4  # the images in memory depend on the step alone
        pixels = self._image((window + int(rng.integers(OPEN_IMAGES))) % sum(POOL_SIZES))
        side = self.crop.side_px
        candidates = []
        for _ in range(CROP_CANDIDATES if rng.random() < 0.75 else 1):
            top = int(rng.integers(pixels.shape[0] - side + 1))
            left = int(rng.integers(pixels.shape[1] - side + 1))
            candidates.append(pixels[top : top + side, left : left + side])
        return max(candidates, key=lambda candidate: float(candidate[::4, ::4].std(axis=(0, 1)).sum()))

    def _image(self, index: int) -> Pixels:
        if index not in self._open_images:
            if len(self._open_images) > 2 * OPEN_IMAGES:
                self._open_images.pop(next(iter(self._open_images)))
            full = index * POOL_SIZES[0] // sum(POOL_SIZES)  # one full-sized image among several small ones
            is_full = full != (index - 1) * POOL_SIZES[0] // sum(POOL_SIZES)
            made = image(self.folder, "full", full) if is_full else image(self.folder, "small", index - full)
            self._open_images[index] = np.asarray(made)
        return self._open_images[index]


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
    return {name: value for name, value in codec.state_dict().items() if name.startswith(TRAINED_PARTS)}


def train_decoder(folder: Path, name: str, codec: nn.Module, schedule: Schedule, crop: CropConfig, until: float) -> Run:
    """The decoder's run, finished or not. The encoder is frozen: generators are trained on its latents."""
    for part, parameters in codec.named_parameters():
        parameters.requires_grad_(part.startswith(TRAINED_PARTS))
    where = device()
    run = Run(folder / f"{name}.pt", channels_last(codec.to(where)), schedule)
    run.train(partial(_loss, run.model, CropSampler(folder, crop)), until)
    return run


def _loss(codec: nn.Module, crops: CropSampler, step: int) -> Tensor:
    where = device()
    pixels = crops.batch(step).to(where, memory_format=torch.channels_last)
    with torch.no_grad():
        latents = encode(codec, pixels)
        latents += NOISE * latents.std() * torch.randn_like(latents)
    with mixed_precision(where):
        decoded = decode(codec, latents).float()
    return functional.l1_loss(decoded, pixels) + functional.mse_loss(decoded, pixels)


def as_pixels(image: Image.Image) -> Tensor:
    """Pixels, -1 to 1, (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(127.5).sub(1)
