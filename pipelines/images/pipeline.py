"""The one place that knows how diffusers' pipelines differ: by what their calls take, never by their names.

A drawing is a batch: rows that share every forward pass, each with its own prompt, seed and pictures. Pictures are
uint8 arrays of shape (height, width, 3).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.catalog.estimate import picture_steps
from pipelines.catalog.plan import Plan, partial, plan_picture
from pipelines.images.batching import Row
from pipelines.images.checkpoint import Checkpoint, UnsupportedTask
from pipelines.images.previews import LONG_SIDE_PX, PreviewMap, foresee, noise_shares
from pipelines.images.tiling import refine
from pipelines.protocol.images import ImageJob, Picture

Pixels = NDArray[np.uint8]
Look = Callable[[int], Pixels | None]  # what row i looks like so far, if that can be told
OnStep = Callable[[Look], None]
MAX_SEED = 2**63
SAME_SHAPE = 0.03  # of a ratio of sides: sizes on the grid differ by less from the ratio they stand for


@dataclass(frozen=True, slots=True)
class Drawing:
    """A batch on its checkpoint. `on_step` is called after each denoising step and may raise to stop."""

    checkpoint: Checkpoint
    rows: Sequence[Row]
    on_step: OnStep
    previews: PreviewMap

    @property
    def job(self) -> ImageJob:
        """What all rows have in common is the first one's."""
        return self.rows[0].job

    @property
    def plan(self) -> Plan:
        """How the size is reached."""
        return plan_picture(self.job.checkpoint, self.job.width_px, self.job.height_px, self.checkpoint.multiple_px)

    @property
    def steps(self) -> int:
        """Denoising steps of the whole drawing, all passes and tiles."""
        return picture_steps(self.job, self.plan)

    def draw(self) -> list[Pixels]:
        """The rows' pictures, at exactly their size."""
        if not self.checkpoint.abilities.negative_prompt and any(row.job.negative_prompt for row in self.rows):
            raise UnsupportedTask("it takes no negative prompt", "negative_prompt")
        job, plan = self.job, self.plan
        if not self.checkpoint.abilities.guidance and job.guidance != job.checkpoint.sampling.guidance:
            raise UnsupportedTask("it draws without guidance", "guidance")
        size = (job.width_px, job.height_px)
        drawn = self._first_pass(plan)
        if plan.finish == "crop":
            images = [_centre(image, size) for image in drawn]
        else:
            images = [image.resize(size, Image.Resampling.LANCZOS) for image in drawn]
        if plan.finish == "refine":
            images = refine(images, plan.tiles, lambda tiles, number: self._redraw(tiles, number, images))
        images = [_composite(image, row.job) for image, row in zip(images, self.rows, strict=True)]
        return [np.asarray(image) for image in images]

    def _first_pass(self, plan: Plan) -> list[Image.Image]:
        job, size = self.job, (plan.width, plan.height)
        seeds = [row_seed(row) for row in self.rows]
        watch = _Watch(self.on_step, self.previews, size)
        if not job.references:
            return self._call("", seeds, size, watch)
        if job.checkpoint.conditioning == "native" and job.mask is None:
            first, *others = [_image(reference) for reference in job.references]
            return self._call("", seeds, size, watch, image=[_in_place(first, job, size), *others])
        canvases = [ImageOps.fit(_image(row.job.references[0]), size, Image.Resampling.LANCZOS) for row in self.rows]
        others = [_image(reference) for reference in job.references[1:]]
        if job.mask is not None:
            masks = [_fitted(row.job.mask, size) for row in self.rows if row.job.mask is not None]
            rest = {"image_reference": others} if others else {}
            return self._call(
                "Inpaint", seeds, size, watch, job.strength, image=_one_or_all(canvases),
                mask_image=_one_or_all(masks), **rest,
            )  # fmt: skip
        if others:
            raise UnsupportedTask("it takes one reference image")
        return self._call("Img2Img", seeds, size, watch, job.strength, image=_one_or_all(canvases))

    def _redraw(self, tiles: list[Image.Image], number: int, canvases: list[Image.Image]) -> list[Image.Image]:
        """One tile of every row in the second pass. Its noise follows from the picture's seed and the tile's number."""
        seeds = [(row_seed(row) * 1_000_003 + number + 1) % MAX_SEED for row in self.rows]
        strength = self.job.checkpoint.sampling.refine_strength
        size = tiles[0].size
        watch = _Watch(self.on_step, self.previews, size, lambda row: _thumbnail(canvases[row]))
        if self.checkpoint.task_class("Img2Img") is not None:
            return self._call("Img2Img", seeds, size, watch, strength, image=_one_or_all(tiles))
        everywhere = _one_or_all([Image.new("L", size, 255)] * len(tiles))
        return self._call("Inpaint", seeds, size, watch, strength, image=_one_or_all(tiles), mask_image=everywhere)

    def _call(
        self, task: str, seeds: list[int], size: tuple[int, int], watch: "_Watch", strength: float | None = None,
        **images: object,
    ) -> list[Image.Image]:  # fmt: skip
        """One pipeline call. What an image needs and the call does not take is an UnsupportedTask."""
        job = self.job
        pipeline = self.checkpoint.pipeline(task)
        accepted = inspect.signature(pipeline.__call__).parameters
        if missing := [name for name in images if name not in accepted]:
            raise UnsupportedTask(f"{type(pipeline).__name__} takes no {missing[0]}")
        asked: dict[str, Any] = {
            "prompt": _one_or_all([row.job.prompt for row in self.rows]),
            "width": size[0],
            "height": size[1],
            "num_inference_steps": job.steps,
            "generator": _one_or_all([torch.Generator("cpu").manual_seed(seed) for seed in seeds]),
            "output_type": "pil",
            **_text_length(pipeline),
            **_guidance(accepted, [row.job for row in self.rows]),
            **watch.callback(accepted),
            **images,
        }
        if strength is not None:
            part = partial(job.steps, strength)
            asked |= {"num_inference_steps": part.steps, "strength": part.strength}
        given = {name: value for name, value in asked.items() if name in accepted and value is not None}
        with torch.inference_mode():
            drawn: list[Image.Image] = pipeline(**given).images
        watch.finished(drawn)
        return drawn


class _Watch:
    """The steps of one pipeline call, and what can be seen of its pictures on the way."""

    def __init__(self, on_step: OnStep, previews: PreviewMap, size: tuple[int, int], shown: Look | None = None) -> None:
        self._on_step = on_step
        self._previews = previews
        self._size = size
        self._shown = shown  # instead of the latents: a second pass shows its canvas
        self._latents: list[torch.Tensor] = []  # after the last two steps
        self._shares: list[tuple[float, float]] | None = None
        self._step = -1  # of the schedule, of which an image-to-image call runs only the last ones

    def callback(self, accepted: Mapping[str, Any]) -> dict[str, Any]:
        """What has us called: pipelines that predate callback_on_step_end take `callback`."""

        def after_step(pipeline: Any, _: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._after(pipeline.scheduler, timestep, tensors.get("latents"))
            return tensors

        if "callback_on_step_end" in accepted:
            return {"callback_on_step_end": after_step}
        return {"callback": lambda _, __, latents: self._after(None, None, latents), "callback_steps": 1}

    def finished(self, drawn: list[Image.Image]) -> None:
        """The call's pictures: what their latents meant can be learned from them."""
        if self._shown is None and self._latents:
            self._previews.learn(self._latents[-1][0], np.asarray(drawn[0]))

    def _after(self, scheduler: Any, timestep: Any, latents: torch.Tensor | None) -> None:
        if latents is not None:
            self._latents = [*self._latents[-1:], latents]
        if scheduler is not None and self._shares is None:
            self._shares = noise_shares(scheduler)
        if scheduler is not None:
            at = (torch.as_tensor(scheduler.timesteps) == timestep).nonzero()
            self._step = int(at[0]) if len(at) else -1
        self._on_step(self._shown or self._foreseen)

    def _foreseen(self, row: int) -> Pixels | None:
        if not self._latents:
            return None
        latents = self._latents[-1][row]
        if len(self._latents) == 2 and self._shares and 0 <= self._step < len(self._shares) - 1:
            before, after = self._shares[self._step], self._shares[self._step + 1]
            latents = foresee(self._latents[0][row], latents, before, after)
        return self._previews.draw(latents, *self._size)


def row_seed(row: Row) -> int:
    """Picture i of a job is the picture of seed + i."""
    return (row.job.seed + row.index) % MAX_SEED


def _one_or_all(values: list[Any]) -> Any:
    """Some pipelines take a list only where there are several."""
    return values[0] if len(values) == 1 else values


def _text_length(pipeline: Any) -> dict[str, int]:
    """Tokens to fill a prompt up to: fewer than usual where the only tokenizer says that training had fewer.

    Pipelines of the FLUX.2 family attend to the filling, at its price.
    """
    lengths = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    tokenizer = getattr(pipeline, "tokenizer", None)
    if lengths is None or not isinstance(lengths.default, int) or tokenizer is None or hasattr(pipeline, "tokenizer_2"):
        return {}
    return {"max_sequence_length": min(lengths.default, tokenizer.model_max_length)}


def _guidance(accepted: Mapping[str, Any], jobs: Sequence[ImageJob]) -> dict[str, Any]:
    """The guidance and negative prompts as a pipeline takes them.

    A call with `true_cfg_scale` and no `guidance_scale` of its own, as Qwen-Image's, means the former by guidance, and
    guides only if there is a negative prompt, be it blank.
    """
    own, guidance = accepted.get("guidance_scale"), jobs[0].guidance
    negatives = [job.negative_prompt for job in jobs]
    if "true_cfg_scale" in accepted and (own is None or own.default is None):
        blank_too = _one_or_all([negative or " " for negative in negatives])
        return {"true_cfg_scale": guidance, "negative_prompt": blank_too}
    return {"guidance_scale": guidance, "negative_prompt": _one_or_all(negatives) if any(negatives) else None}


def _image(picture: Picture) -> Image.Image:
    return Image.frombytes(picture.mode, (picture.width_px, picture.height_px), picture.data)


def _in_place(reference: Image.Image, job: ImageJob, drawn: tuple[int, int]) -> Image.Image:
    """A reference of the picture's own shape at the size that is drawn, so that what it shows is at the same places.

    A pipeline with native references crops other sizes to its multiple, and what was drawn smaller has moved.
    """
    shapes = (reference.width * job.height_px) / (reference.height * job.width_px)
    same_shape = abs(shapes - 1) < SAME_SHAPE
    return reference.resize(drawn, Image.Resampling.LANCZOS) if same_shape else reference


def _fitted(mask: Picture, size: tuple[int, int]) -> Image.Image:
    return ImageOps.fit(_image(mask), size, Image.Resampling.NEAREST)


def _thumbnail(image: Image.Image) -> Pixels:
    small = image.copy()
    small.thumbnail((LONG_SIDE_PX, LONG_SIDE_PX))
    return np.asarray(small)


def _centre(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The middle of a picture that is larger by less than a latent."""
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def _composite(drawn: Image.Image, job: ImageJob) -> Image.Image:
    """Outside a mask the reference's own pixels, exactly: an autoencoder changes even what it does not paint."""
    if job.mask is None:
        return drawn
    kept = ImageOps.fit(_image(job.references[0]), drawn.size, Image.Resampling.LANCZOS)
    return Image.composite(drawn, kept, _fitted(job.mask, drawn.size))
