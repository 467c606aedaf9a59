"""Images from a checkpoint of the catalog, as the engine draws them, and the PSNR of its codec."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from PIL import Image

from pipelines.catalog.conditioning import find_task
from pipelines.families.task import Task
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import Encoding, ImageJob, RawImage
from server.catalog.images import ImageModel
from starters.measuring.adherence import Case
from starters.world.render import render
from starters.world.scene import sample_scene

CODEC_SCENE_PX: Final = 1024  # side of the scenes that a codec is measured on
SEED: Final = 5


@dataclass(frozen=True, slots=True)
class Generator:
    """A model with its checkpoint loaded, drawing with the model's own defaults."""

    model: ImageModel
    checkpoint: Checkpoint

    @classmethod
    def of(cls, model: ImageModel) -> "Generator":
        """Raises CheckpointError."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(model, load_checkpoint(model.checkpoint, device))

    @property
    def edits(self) -> bool:
        """Whether the checkpoint follows editing instructions about reference images."""
        return find_task(self.model.checkpoint, has_references=True, has_mask=False) is Task.NATIVE

    def draw(self, case: Case, *, quality: str | None = None) -> Image.Image:
        job = self._job(case, self.model.steps_for(quality))
        pixels = ImagePipeline(self.checkpoint, Row(job, 0, queued_at=0.0), lambda _: None, PreviewMap()).generate()
        return Image.fromarray(pixels)

    def _job(self, case: Case, steps: int) -> ImageJob:
        spec = self.model.checkpoint
        return ImageJob(
            id="measure", checkpoint=spec, prompt=case.prompt, sampling=spec.sampling.resolve(steps),
            width_px=case.size[0], height_px=case.size[1], n=1, seed=SEED,
            references=tuple(_image(image) for image in case.images()), mask=None, encoding=Encoding(),
            metadata={}, time_limit_s=600,
        )  # fmt: skip


def codec_psnr(generator: Generator, count: int) -> float:
    """The mean PSNR of rendered scenes after the codec, in dB."""
    rng = np.random.default_rng(SEED)
    return float(
        np.mean([_psnr(generator, render(sample_scene(rng), CODEC_SCENE_PX, CODEC_SCENE_PX)) for _ in range(count)])
    )


@torch.inference_mode()
def _psnr(generator: Generator, image: Image.Image) -> float:
    codec, device = generator.checkpoint.components["vae"], generator.checkpoint.device
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].to(device).to(codec.dtype).div(127.5).sub(1)
    coded = codec.encode(pixels)
    latents = coded.latents if hasattr(coded, "latents") else coded.latent_dist.mode()
    decoded = codec.decode(latents).sample.clamp(-1, 1)
    error = (decoded.float() - pixels.float()).square().mean().item()
    return float(10 * np.log10(4 / max(error, 1e-12)))


def _image(image: Image.Image) -> RawImage:
    return RawImage(image.width, image.height, "RGB", image.tobytes())
