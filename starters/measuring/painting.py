"""Drawing with a checkpoint of the catalog as the engine does, and what its codec loses."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from PIL import Image

from pipelines.catalog.images import ImageModel
from pipelines.images.batching import Row
from pipelines.images.checkpoint import Checkpoint, load_checkpoint
from pipelines.images.pipeline import Drawing
from pipelines.images.previews import PreviewMap
from pipelines.protocol.images import Encoding, ImageJob, Picture
from starters.measuring.obedience import Ask
from starters.world.render import render
from starters.world.scene import sample_scene

CODED_PX: Final = 1024  # side of the scenes that a codec is measured on
SEED: Final = 5


@dataclass(frozen=True, slots=True)
class Painter:
    """A model with its checkpoint loaded, drawing with the model's own defaults."""

    model: ImageModel
    checkpoint: Checkpoint

    @classmethod
    def of(cls, model: ImageModel) -> "Painter":
        """Load it. Raises CheckpointError."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(model, load_checkpoint(model.checkpoint, device))

    @property
    def edits(self) -> bool:
        """Whether it follows instructions about references."""
        return self.model.checkpoint.conditioning == "native"

    def draw(self, ask: Ask, *, quality: str | None = None) -> Image.Image:
        """One picture."""
        job = self._job(ask, self.model.steps_for(quality))
        pixels = Drawing(self.checkpoint, [Row(job, 0, since=0.0)], lambda _: None, PreviewMap()).draw()
        return Image.fromarray(pixels[0])

    def _job(self, ask: Ask, steps: int) -> ImageJob:
        sampling = self.model.checkpoint.sampling
        return ImageJob(
            id="measure", checkpoint=self.model.checkpoint, prompt=ask.prompt,
            negative_prompt=sampling.negative_prompt, width_px=ask.size[0], height_px=ask.size[1], n=1, steps=steps,
            guidance=sampling.guidance, strength=sampling.strength, seed=SEED,
            references=tuple(_picture(image) for image in ask.pictures()), mask=None, encoding=Encoding(),
            metadata={}, time_limit_s=600,
        )  # fmt: skip


def codec_psnr(painter: Painter, count: int) -> float:
    """The mean PSNR of rendered scenes after the codec, in dB."""
    rng = np.random.default_rng(SEED)
    return float(np.mean([_psnr(painter, render(sample_scene(rng), CODED_PX, CODED_PX)) for _ in range(count)]))


@torch.inference_mode()
def _psnr(painter: Painter, image: Image.Image) -> float:
    codec, device = painter.checkpoint.components["vae"], painter.checkpoint.device
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].to(device).to(codec.dtype).div(127.5).sub(1)
    coded = codec.encode(pixels)
    latents = coded.latents if hasattr(coded, "latents") else coded.latent_dist.mode()
    drawn = codec.decode(latents).sample.clamp(-1, 1)
    error = (drawn.float() - pixels.float()).square().mean().item()
    return float(10 * np.log10(4 / max(error, 1e-12)))


def _picture(image: Image.Image) -> Picture:
    return Picture(image.width, image.height, "RGB", image.tobytes())
