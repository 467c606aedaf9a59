"""starter-alpha's UNet: from noise and a caption to latents, by predicting the latents."""

from pathlib import Path
from typing import Final

import numpy as np
import torch
from diffusers import DDIMScheduler
from torch import Tensor, nn
from torch.nn import functional

from starters.training.average_codec import latents_of
from starters.training.dataset import FULL, rng_for, train_scene
from starters.training.loop import Run, Schedule, channels_last, device, mixed_precision
from starters.training.stages import Stage, contrast_weights, train_caption
from starters.training.text_encoder import TextEncoder

MULTIPLE_PX: Final = 32  # two latents
FAR: Final = 1.0  # in latents: about a third of the distance from black to white
TILE_SHARE: Final = 0.4  # of full-sized batches: parts of images, as in the second pass of a 2K or 4K image
MAX_TILE_TIMESTEP: Final = 400  # that pass adds noise up to this timestep
CAPTION_DROPOUT: Final = 0.1  # for classifier-free guidance
NOISY_FROM: Final = 850  # from this timestep on, content is decided by the caption alone
SIZES: Final = (*((1024, 1024),) * 4, *FULL[:-4])  # without the strips, which no alpha model offers


class UNetTraining:
    """The losses of starter-alpha."""

    def __init__(self, encoder: TextEncoder, scheduler: DDIMScheduler, stage: Stage) -> None:
        self.encoder, self.scheduler, self.batch = encoder, scheduler, stage.batch
        self.sizes = stage.sizes(SIZES, MULTIPLE_PX)
        self.has_tiles = stage.kind == "full"

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The weighted error of the predicted latents. Half of the timesteps are the noisiest, which decide most."""
        rng = rng_for(6, step)
        is_tile = self.has_tiles and rng.random() < TILE_SHARE
        upscale = int(rng.integers(2, 4)) if is_tile else 1
        clean, texts = self._batch(step, rng, upscale)
        start = torch.lerp(clean, as_upsampled(clean, upscale), torch.rand(len(clean), 1, 1, 1, device=clean.device))
        noise = torch.randn_like(clean)
        times = (self._tile_times() if is_tile else self._times()).to(clean.device)
        with mixed_precision(device()):
            with torch.no_grad():
                prompt = self.encoder(self.encoder.tokens(texts))
            latents = network(self.scheduler.add_noise(start, noise, times), times, encoder_hidden_states=prompt).sample
        errors: Tensor = contrast_weights(clean, FAR) * (latents.float() - clean).square()
        return errors.mean()

    def _times(self) -> Tensor:
        anywhere, early = torch.randint(0, 1000, (self.batch,)), torch.randint(NOISY_FROM, 1000, (self.batch,))
        return torch.where(torch.rand(self.batch) < 0.5, anywhere, early)

    def _tile_times(self) -> Tensor:
        return torch.randint(0, MAX_TILE_TIMESTEP, (self.batch,))

    def _batch(self, step: int, rng: np.random.Generator, upscale: int) -> tuple[Tensor, list[str]]:
        """New scenes, or crops of upscaled ones. Rendering them takes less than a tenth of the network's time."""
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        scenes = [train_scene(step * self.batch + i) for i in range(self.batch)]
        texts = [
            "" if rng.random() < CAPTION_DROPOUT else train_caption(scene, 7, step, i) for i, scene in enumerate(scenes)
        ]
        latents = torch.stack([latents_of(scene, size[0] * upscale, size[1] * upscale) for scene in scenes])
        height, width = latents.shape[2] // upscale, latents.shape[3] // upscale
        top, left = int(rng.integers(latents.shape[2] - height + 1)), int(rng.integers(latents.shape[3] - width + 1))
        return latents[:, :, top : top + height, left : left + width].to(device()), texts


def as_upsampled(latents: Tensor, times: int) -> Tensor:
    """Latents (n, c, h, w) as soft as if they had been drawn `times` smaller: what a tile has to sharpen."""
    if times == 1:
        return latents
    size = latents.shape[2:]
    small = functional.interpolate(latents, (-(-size[0] // times), -(-size[1] // times)), mode="area")
    return functional.interpolate(small, size, mode="bilinear")


def train_unet(
    folder: Path, name: str, network: nn.Module, training: UNetTraining, schedule: Schedule, until: float
) -> Run:
    """The UNet's run, finished or not."""
    run = Run(folder / f"{name}.pt", channels_last(network.to(device())), schedule)
    run.train(lambda step: training.loss(run.model, step), until)
    return run
