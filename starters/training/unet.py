"""starter-alpha's UNet: from noise and a caption to latents, by predicting the latents."""

from pathlib import Path
from typing import Final

import numpy as np
import torch
from diffusers import DDIMScheduler
from torch import Tensor, nn
from torch.nn import functional

from starters.training.averages import latents_of
from starters.training.loop import Run, Schedule, channels_last, device, fast_math
from starters.training.pictures import FULL, rng_for, train_scene
from starters.training.stages import Stage, standing_out, train_caption
from starters.training.texts import Encoder

GRAIN_PX: Final = 32  # two latents: sides of any number of them are drawn, but sizes are reduced to whole ones
FAR: Final = 1.0  # in latents: a third of the way from black to white
TILES: Final = 0.4  # of full-sized batches are parts of pictures, as the second pass of a 2K or 4K picture sees them
TILE_NOISE: Final = 400  # times up to which that pass adds noise
UNTOLD: Final = 0.1  # of the captions are left out, for guidance
NOISY: Final = 850  # times from here on: only the caption says what there will be
SIZES: Final = (*((1024, 1024),) * 4, *FULL[:-4])  # without the strips that no model of it draws


class UNetTraining:
    """The losses of starter-alpha."""

    def __init__(self, encoder: Encoder, scheduler: DDIMScheduler, stage: Stage) -> None:
        self.encoder, self.scheduler, self.batch = encoder, scheduler, stage.batch
        self.sizes = stage.sizes(SIZES, GRAIN_PX)
        self.has_tiles = stage.kind == "full"

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The weighted error of the predicted latents. Half of the times are the noisiest, which decide most."""
        rng = rng_for(6, step)
        is_tile = self.has_tiles and rng.random() < TILES
        enlarged = int(rng.integers(2, 4)) if is_tile else 1
        clean, texts = self._batch(step, rng, enlarged)
        start = torch.lerp(clean, as_enlarged(clean, enlarged), torch.rand(len(clean), 1, 1, 1, device=clean.device))
        noise = torch.randn_like(clean)
        times = (self._tile_times() if is_tile else self._times()).to(clean.device)
        with fast_math(device()):
            with torch.no_grad():
                said = self.encoder(self.encoder.tokens(texts))
            drawn = network(self.scheduler.add_noise(start, noise, times), times, encoder_hidden_states=said).sample
        errors: Tensor = standing_out(clean, FAR) * (drawn.float() - clean).square()
        return errors.mean()

    def _times(self) -> Tensor:
        anywhere, early = torch.randint(0, 1000, (self.batch,)), torch.randint(NOISY, 1000, (self.batch,))
        return torch.where(torch.rand(self.batch) < 0.5, anywhere, early)

    def _tile_times(self) -> Tensor:
        return torch.randint(0, TILE_NOISE, (self.batch,))

    def _batch(self, step: int, rng: np.random.Generator, enlarged: int) -> tuple[Tensor, list[str]]:
        """Scenes that were never drawn before, or cuttings of enlarged ones.

        Drawing them costs less than a tenth of what the network does.
        """
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        scenes = [train_scene(step * self.batch + i) for i in range(self.batch)]
        texts = ["" if rng.random() < UNTOLD else train_caption(scene, 7, step, i) for i, scene in enumerate(scenes)]
        drawn = torch.stack([latents_of(scene, size[0] * enlarged, size[1] * enlarged) for scene in scenes])
        height, width = drawn.shape[2] // enlarged, drawn.shape[3] // enlarged
        top, left = int(rng.integers(drawn.shape[2] - height + 1)), int(rng.integers(drawn.shape[3] - width + 1))
        return drawn[:, :, top : top + height, left : left + width].to(device()), texts


def as_enlarged(latents: Tensor, times: int) -> Tensor:
    """Latents (n, c, h, w) as soft as if they had been drawn so many times smaller: what a tile has to sharpen."""
    if times == 1:
        return latents
    size = latents.shape[2:]
    small = functional.interpolate(latents, (-(-size[0] // times), -(-size[1] // times)), mode="area")
    return functional.interpolate(small, size, mode="bilinear")


def train_unet(
    folder: Path, name: str, network: nn.Module, training: UNetTraining, schedule: Schedule, until: float
) -> Run:
    """The UNet's run, as far as it got."""
    run = Run(folder / f"{name}.pt", channels_last(network.to(device())), schedule)
    run.train(lambda step: training.loss(run.model, step), until)
    return run
