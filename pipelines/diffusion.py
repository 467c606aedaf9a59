"""The one place that knows how diffusers' pipelines differ: by what their calls take, never by their names.

Pictures are uint8 arrays of shape (height, width, 3).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.checkpoints import Checkpoint, UnsupportedTask
from pipelines.plan import Plan, partial, plan_picture
from pipelines.refine import refine
from pipelines.types import ImageJob, Picture

Pixels = NDArray[np.uint8]
OnStep = Callable[[], None]
MAX_SEED = 2**63


@dataclass(frozen=True, slots=True)
class Drawing:
    """One job on its checkpoint. `on_step` is called after each denoising step and may raise to stop."""

    checkpoint: Checkpoint
    job: ImageJob
    on_step: OnStep

    @property
    def plan(self) -> Plan:
        """How the job's size is reached."""
        return plan_picture(self.job.checkpoint, self.job.width_px, self.job.height_px, self.checkpoint.multiple_px)

    @property
    def steps(self) -> int:
        """Denoising steps of the whole job, all pictures, passes and tiles."""
        job, plan = self.job, self.plan
        from_noise = not job.references or (job.mask is None and job.checkpoint.conditioning == "native")
        first = job.steps if from_noise else partial(job.steps, job.strength).run
        return job.n * (first + len(plan.tiles) * partial(job.steps, job.checkpoint.sampling.refine_strength).run)

    def draw(self, index: int) -> Pixels:
        """Picture `index` of the job, at exactly its size."""
        job, plan = self.job, self.plan
        seed = (job.seed + index) % MAX_SEED
        size = (job.width_px, job.height_px)
        image = self._first_pass(plan, seed)
        image = _centre(image, size) if plan.finish == "crop" else image.resize(size, Image.Resampling.LANCZOS)
        if plan.finish == "refine":
            image = refine(image, plan.tiles, lambda tile, number: self._redraw(tile, seed, number))
        if job.mask is not None:
            image = _composite(image, job.references[0], job.mask)
        return np.asarray(image)

    def _first_pass(self, plan: Plan, seed: int) -> Image.Image:
        job = self.job
        size = (plan.width, plan.height)
        if not job.references:
            return self._call("", seed, size)
        canvas, *others = [_image(reference) for reference in job.references]
        if job.mask is not None:
            fitted = ImageOps.fit(canvas, size, Image.Resampling.LANCZOS)
            mask = ImageOps.fit(_image(job.mask), size, Image.Resampling.NEAREST)
            rest = {"image_reference": others} if others else {}
            return self._call("Inpaint", seed, size, job.strength, image=fitted, mask_image=mask, **rest)
        if job.checkpoint.conditioning == "native":
            return self._call("", seed, size, image=[canvas, *others])
        if others:
            raise UnsupportedTask("it takes one reference image")
        fitted = ImageOps.fit(canvas, size, Image.Resampling.LANCZOS)
        return self._call("Img2Img", seed, size, job.strength, image=fitted)

    def _redraw(self, tile: Image.Image, seed: int, number: int) -> Image.Image:
        """A tile of the second pass. Its noise follows from the picture's seed and the tile's number."""
        seed = (seed * 1_000_003 + number + 1) % MAX_SEED
        strength = self.job.checkpoint.sampling.refine_strength
        if self.checkpoint.task_class("Img2Img") is not None:
            return self._call("Img2Img", seed, tile.size, strength, image=tile)
        everywhere = Image.new("L", tile.size, 255)
        return self._call("Inpaint", seed, tile.size, strength, image=tile, mask_image=everywhere)

    def _call(
        self, task: str, seed: int, size: tuple[int, int], strength: float | None = None, **images: object
    ) -> Image.Image:
        """One pipeline call. What an image needs and the call does not take is an UnsupportedTask."""
        job = self.job
        pipeline = self.checkpoint.pipeline(task)
        accepted = inspect.signature(pipeline.__call__).parameters
        if missing := [name for name in images if name not in accepted]:
            raise UnsupportedTask(f"{type(pipeline).__name__} takes no {missing[0]}")
        asked: dict[str, Any] = {
            "prompt": job.prompt,
            "width": size[0],
            "height": size[1],
            "num_inference_steps": job.steps,
            "generator": torch.Generator("cpu").manual_seed(seed),
            "output_type": "pil",
            **_guidance(accepted, job),
            **self._callback(accepted),
            **images,
        }
        if strength is not None:
            part = partial(job.steps, strength)
            asked |= {"num_inference_steps": part.steps, "strength": part.strength}
        given = {name: value for name, value in asked.items() if name in accepted and value is not None}
        with torch.inference_mode():
            image: Image.Image = pipeline(**given).images[0]
        return image

    def _callback(self, accepted: Mapping[str, Any]) -> dict[str, Any]:
        """What has `on_step` called: pipelines that predate callback_on_step_end take `callback`."""

        def after_step(_: Any, __: int, ___: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self.on_step()
            return tensors

        if "callback_on_step_end" in accepted:
            return {"callback_on_step_end": after_step}
        return {"callback": lambda *_: self.on_step(), "callback_steps": 1}


def _guidance(accepted: Mapping[str, Any], job: ImageJob) -> dict[str, Any]:
    """The guidance and negative prompt as a pipeline takes them.

    A call with `true_cfg_scale` and no `guidance_scale` of its own, as Qwen-Image's, means the former by guidance, and
    guides only if there is a negative prompt, be it blank.
    """
    own = accepted.get("guidance_scale")
    if "true_cfg_scale" in accepted and (own is None or own.default is None):
        return {"true_cfg_scale": job.guidance, "negative_prompt": job.negative_prompt or " "}
    return {"guidance_scale": job.guidance, "negative_prompt": job.negative_prompt or None}


def _image(picture: Picture) -> Image.Image:
    return Image.frombytes(picture.mode, (picture.width_px, picture.height_px), picture.data)


def _centre(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The middle of a picture that is larger by less than a latent."""
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def _composite(drawn: Image.Image, canvas: Picture, mask: Picture) -> Image.Image:
    """Outside the mask the reference's own pixels, exactly: an autoencoder changes even what it does not paint."""
    kept = ImageOps.fit(_image(canvas), drawn.size, Image.Resampling.LANCZOS)
    painted = ImageOps.fit(_image(mask), drawn.size, Image.Resampling.NEAREST)
    return Image.composite(drawn, kept, painted)
