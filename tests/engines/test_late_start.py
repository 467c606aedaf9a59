"""Image to image and inpainting by classes that only draw from text."""

from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image

from pipelines.families.task import Task
from pipelines.images.denoising.late_start import LateStart
from pipelines.images.tasks import UnsupportedTask, task_classes
from pipelines.protocol.pixels import to_image
from tests.engines.conftest import split_image
from tests.support.tiny_families import FAMILIES

IMAGE = to_image(split_image(upright=True))
PROMPT = "a red boat"


def started_late(pipeline: Any, *, steps: int, run: int, mask: Image.Image | None = None, **fields: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    late = LateStart(pipeline, IMAGE, run, mask)
    done: list[int] = []

    def count(_: Any, index: int, __: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        late.restore(tensors["latents"])
        done.append(index)
        return tensors

    arguments = {
        "prompt": PROMPT, "width": 64, "height": 64, "num_inference_steps": steps, "output_type": "np",
        "generator": torch.Generator().manual_seed(3), "callback_on_step_end": count, **fields,
    }  # fmt: skip
    with torch.inference_mode():
        drawn = pipeline(**arguments).images
    assert len(done) == run
    return drawn


@pytest.fixture
def encode_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Image-to-image classes draw a sample of what the codec encodes, which takes numbers from the generator."""
    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode())


@pytest.mark.usefixtures("encode_without_noise")
@pytest.mark.parametrize(
    ("family", "sibling", "fields"),
    [
        ("sd3", diffusers.StableDiffusion3Img2ImgPipeline, {"guidance_scale": 3.0}),
        ("sdxl", diffusers.StableDiffusionXLImg2ImgPipeline, {"guidance_scale": 3.0}),
    ],
)
def test_a_late_start_draws_what_the_image_to_image_class_draws(
    family: str, sibling: type[Any], fields: dict[str, Any]
) -> None:
    """Of a family that has one: the same steps on the same noised latents."""
    own = FAMILIES[family]()
    other = sibling(**own.components)
    other.set_progress_bar_config(disable=True)
    size = {"width": 64, "height": 64} if family == "sd3" else {}
    with torch.inference_mode():
        expected = other(
            prompt=PROMPT, image=IMAGE, strength=0.5, num_inference_steps=4, output_type="np",
            generator=torch.Generator().manual_seed(3), **size, **fields,
        ).images  # fmt: skip
    drawn = started_late(own, steps=4, run=2, **fields)
    assert np.abs(drawn - expected).max() < 1e-3


def test_what_the_mask_leaves_out_is_the_image_s_own_latents() -> None:
    pipeline = FAMILIES["lumina2"]()
    left = Image.new("L", (64, 64), 0)
    left.paste(255, (0, 0, 32, 64))
    late: list[LateStart] = []
    original = LateStart._set_latents

    def keep(self: LateStart, latents: Any) -> None:
        original(self, latents)
        late.append(self)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(LateStart, "_set_latents", keep)
        latents = started_late(pipeline, steps=3, run=3, mask=left, output_type="latent")
    clean = late[0]._clean
    assert torch.equal(latents[..., 4:], clean[..., 4:])
    assert not torch.allclose(latents[..., :4], clean[..., :4], atol=0.1)


def test_latents_of_an_unknown_form_are_refused() -> None:
    with pytest.raises(UnsupportedTask, match="FluxPipeline has latents that an image is not known to have"):
        started_late(FAMILIES["flux"](), steps=2, run=1)


def test_a_class_with_siblings_uses_them() -> None:
    assert task_classes(diffusers.FluxPipeline)[Task.REDRAW] is diffusers.FluxImg2ImgPipeline
    assert task_classes(diffusers.Lumina2Pipeline)[Task.REDRAW] is diffusers.Lumina2Pipeline
    assert Task.REDRAW not in task_classes(diffusers.Flux2Pipeline)
    assert Task.REDRAW not in task_classes(diffusers.OvisImagePipeline), "its latents are packed"
