"""starter-alpha's UNet: from noise and a caption to latents, by predicting the latents."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from diffusers import DDIMScheduler
from torch import Tensor, nn

from pipelines.starter.training.averages import latents_of
from pipelines.starter.training.loop import Run, Schedule, channels_last, device, fast_math
from pipelines.starter.training.pictures import FULL, rng_for, train_scene
from pipelines.starter.training.texts import Encoder
from pipelines.starter.world.captions import caption
from pipelines.starter.world.scene import Scene
from pipelines.starter.world.split import text_split

OBJECTS: Final = 6.0  # how much more a place counts that is unlike the sky or the ground around it
FAR: Final = 1.0  # in latents: a third of the way from black to white
UNTOLD: Final = 0.1  # of the captions are left out, for guidance
NOISY: Final = 850  # times from here on: only the caption says what there will be
SIZES: Final = (*((1024, 1024),) * 4, *FULL[:-4])  # without the strips that no model of it draws
HALVES: Final = tuple((width // 2, height // 2) for width, height in SIZES)


@dataclass(frozen=True, slots=True)
class Stage:
    """A generator's training on pictures of this kind, so many at a time."""

    kind: Literal["quarter", "half", "full"]  # along either side: small pictures teach as much in less time
    batch: int
    schedule: Schedule


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
    away = (values - values.median(dim=3, keepdim=True).values).square().mean(1, keepdim=True).sqrt()
    counts: Tensor = 1 + OBJECTS * (away / far).clamp(max=1)
    return counts


class UNetTraining:
    """The losses of starter-alpha."""

    def __init__(self, encoder: Encoder, scheduler: DDIMScheduler, stage: Stage) -> None:
        self.encoder, self.scheduler, self.batch = encoder, scheduler, stage.batch
        self.sizes = SIZES if stage.kind == "full" else HALVES

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The error of the predicted latents. Half of the times are the noisiest, which decide what there will be."""
        clean, texts = self._batch(step)
        noise = torch.randn_like(clean)
        anywhere, early = torch.randint(0, 1000, (self.batch,)), torch.randint(NOISY, 1000, (self.batch,))
        times = torch.where(torch.rand(self.batch) < 0.5, anywhere, early).to(clean.device)
        with fast_math(device()):
            with torch.no_grad():
                said = self.encoder(self.encoder.tokens(texts))
            drawn = network(self.scheduler.add_noise(clean, noise, times), times, encoder_hidden_states=said).sample
        return (standing_out(clean, FAR) * (drawn.float() - clean).square()).mean()

    def _batch(self, step: int) -> tuple[Tensor, list[str]]:
        """Scenes that were never drawn before: they cost less than a tenth of what the network does."""
        rng = rng_for(6, step)
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        scenes = [train_scene(step * self.batch + i) for i in range(self.batch)]
        texts = ["" if rng.random() < UNTOLD else train_caption(scene, 7, step, i) for i, scene in enumerate(scenes)]
        return torch.stack([latents_of(scene, *size) for scene in scenes]).to(device()), texts


def train_unet(
    folder: Path, name: str, network: nn.Module, training: UNetTraining, schedule: Schedule, until: float
) -> Run:
    """The UNet's run, as far as it got."""
    run = Run(folder / f"{name}.pt", channels_last(network.to(device())), schedule)
    run.train(lambda step: training.loss(run.model, step), until)
    return run
