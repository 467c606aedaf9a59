"""The one module that knows how diffusers' pipelines differ: by the arguments of their calls, never by their names.

A `BatchPipeline` generates a batch: rows that share every forward pass, each with its own prompt, seed and images.
Pictures are uint8 arrays of shape (height, width, 3).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.catalog.conditioning import Task, task_of
from pipelines.catalog.estimate import picture_steps
from pipelines.catalog.plan import Plan, partial, plan_picture
from pipelines.images.batching import Row
from pipelines.images.checkpoint import Checkpoint, UnsupportedTask
from pipelines.images.finish import (
    align_reference,
    center_crop,
    composite,
    fit_mask,
    thumbnail,
    to_image,
    to_planned_size,
)
from pipelines.images.previews import PreviewMap, noise_schedule, predict_x0
from pipelines.images.tiling import refine
from pipelines.protocol.images import ImageJob

Pixels = NDArray[np.uint8]
PreviewFn = Callable[[int], Pixels | None]  # the preview of row i; None if there is none yet
OnStep = Callable[[PreviewFn], None]
SEED_MODULUS = 2**63


@dataclass(frozen=True, slots=True)
class BatchPipeline:
    """A batch on its checkpoint. `on_step` is called after each denoising step and may raise to stop."""

    checkpoint: Checkpoint
    rows: Sequence[Row]
    on_step: OnStep
    preview_map: PreviewMap

    @property
    def job(self) -> ImageJob:
        """The first row's job, for what all rows have in common (batch_key)."""
        return self.rows[0].job

    @property
    def plan(self) -> Plan:
        return plan_picture(self.job.checkpoint, self.job.width_px, self.job.height_px, self.checkpoint.multiple_px)

    @property
    def steps(self) -> int:
        """Denoising steps of the whole batch, over both passes and all tiles."""
        return picture_steps(self.job, self.plan)

    def generate(self) -> list[Pixels]:
        """The rows' pictures, at exactly their size. Raises UnsupportedTask and WrongSize."""
        self._check_abilities()
        job, plan = self.job, self.plan
        size = (job.width_px, job.height_px)
        images = self._first_pass(plan)
        if plan.finish == "crop":
            images = [center_crop(image, size) for image in images]
        else:
            images = [image.resize(size, Image.Resampling.LANCZOS) for image in images]
        if plan.finish == "refine":
            canvases = images
            images = refine(canvases, plan.tiles, lambda tiles, number: self._redraw(tiles, number, canvases))
        images = [composite(image, row.job) for image, row in zip(images, self.rows, strict=True)]
        return [np.asarray(image) for image in images]

    def _check_abilities(self) -> None:
        abilities, job = self.checkpoint.abilities, self.job
        if not abilities.negative_prompt and any(row.job.sampling.negative_prompt for row in self.rows):
            raise UnsupportedTask("it takes no negative prompt", "negative_prompt")
        if not abilities.guidance and job.sampling.guidance != job.checkpoint.sampling.guidance:
            raise UnsupportedTask("it draws without guidance", "guidance")

    def _first_pass(self, plan: Plan) -> list[Image.Image]:
        job, size = self.job, (plan.width, plan.height)
        seeds = [row_seed(row) for row in self.rows]
        observer = _StepObserver(self.on_step, self.preview_map, size)
        match task_of(job):
            case Task.TEXT:
                return self._call("", seeds, size, observer)
            case Task.NATIVE:
                first, *others = [to_image(reference) for reference in job.references]
                return self._call("", seeds, size, observer, image=[align_reference(first, job, size), *others])
            case Task.REDRAW:
                if len(job.references) > 1:
                    raise UnsupportedTask("it takes one reference image")
                strength = job.sampling.strength
                return self._call("Img2Img", seeds, size, observer, strength, image=self._canvases(size))
            case Task.INPAINT:
                masks = [fit_mask(row.job.mask, size) for row in self.rows if row.job.mask is not None]
                images: dict[str, object] = {"image": self._canvases(size), "mask_image": _scalar_or_list(masks)}
                if others := [to_image(reference) for reference in job.references[1:]]:
                    images["image_reference"] = others
                return self._call("Inpaint", seeds, size, observer, job.sampling.strength, **images)

    def _canvases(self, size: tuple[int, int]) -> Any:
        """Each row's first reference at the size that is drawn."""
        references = (to_image(row.job.references[0]) for row in self.rows)
        return _scalar_or_list([ImageOps.fit(image, size, Image.Resampling.LANCZOS) for image in references])

    def _redraw(self, tiles: list[Image.Image], number: int, canvases: list[Image.Image]) -> list[Image.Image]:
        """One tile of every row in the second pass. Its seed derives from the picture's seed and the tile's number."""
        seeds = [(row_seed(row) * 1_000_003 + number + 1) % SEED_MODULUS for row in self.rows]
        strength = self.job.sampling.refine_strength
        size = tiles[0].size
        observer = _StepObserver(self.on_step, self.preview_map, size, lambda row: thumbnail(canvases[row]))
        image = _scalar_or_list(tiles)
        if self.checkpoint.task_class("Img2Img") is not None:
            return self._call("Img2Img", seeds, size, observer, strength, image=image)
        full_mask = _scalar_or_list([Image.new("L", size, 255)] * len(tiles))
        return self._call("Inpaint", seeds, size, observer, strength, image=image, mask_image=full_mask)

    def _call(
        self, task: str, seeds: list[int], size: tuple[int, int], observer: "_StepObserver",
        strength: float | None = None, **images: object,
    ) -> list[Image.Image]:  # fmt: skip
        """One pipeline call; its pictures have exactly `size`. Arguments that its signature lacks are left out, but for
        images. Raises UnsupportedTask if it takes no such image, WrongSize for pictures of another shape.

        `strength` is None for a call that starts from noise.
        """
        sampling = self.job.sampling
        pipeline = self.checkpoint.pipeline(task, sampling)
        accepted = inspect.signature(pipeline.__call__).parameters
        if missing := [name for name in images if name not in accepted]:
            raise UnsupportedTask(f"{type(pipeline).__name__} takes no {missing[0]}")
        arguments: dict[str, Any] = {
            "prompt": _scalar_or_list([row.job.prompt for row in self.rows]),
            "width": size[0],
            "height": size[1],
            "max_area": size[0] * size[1],  # some scale every size to this area, a megapixel by default
            "num_inference_steps": sampling.steps,
            "generator": _scalar_or_list([torch.Generator("cpu").manual_seed(seed) for seed in seeds]),
            "output_type": "pil",
            **_max_sequence_length(pipeline),
            **_guidance(accepted, [row.job for row in self.rows]),
            **observer.callback(accepted),
            **images,
        }
        if strength is not None:
            part = partial(sampling.steps, strength)
            arguments |= {"num_inference_steps": part.steps, "strength": part.strength}
        arguments = {name: value for name, value in arguments.items() if name in accepted and value is not None}
        with torch.inference_mode():
            generated: list[Image.Image] = pipeline(**arguments).images
        observer.on_finished(generated)
        return [to_planned_size(image, size) for image in generated]


class _StepObserver:
    """Follows the steps of one pipeline call and predicts its pictures from the latents of the last two steps."""

    def __init__(
        self, on_step: OnStep, preview_map: PreviewMap, size: tuple[int, int], canvas: PreviewFn | None = None
    ) -> None:
        self._on_step = on_step
        self._preview_map = preview_map
        self._size = size
        self._canvas = canvas  # previews of the second pass, instead of the latents of one tile
        self._latents: list[torch.Tensor] = []  # after the last two steps
        self._schedule: list[tuple[float, float]] | None = None
        self._step = -1  # index in the schedule, of which an image-to-image call runs only the last steps

    def callback(self, accepted: Mapping[str, Any]) -> dict[str, Any]:
        """The step callback as an argument. Pipelines that predate callback_on_step_end take `callback`."""

        def after_step(pipeline: Any, _: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._after_step(pipeline.scheduler, timestep, tensors.get("latents"))
            return tensors

        if "callback_on_step_end" in accepted:
            return {"callback_on_step_end": after_step}
        return {"callback": lambda _, __, latents: self._after_step(None, None, latents), "callback_steps": 1}

    def on_finished(self, images: list[Image.Image]) -> None:
        """Fit the preview map to the last latents and the decoded picture."""
        if self._canvas is None and self._latents:
            self._preview_map.update(self._latents[-1][0], np.asarray(images[0]))

    def _after_step(self, scheduler: Any, timestep: Any, latents: torch.Tensor | None) -> None:
        if latents is not None:
            self._latents = [*self._latents[-1:], latents]
        if scheduler is not None and self._schedule is None:
            self._schedule = noise_schedule(scheduler)
        if scheduler is not None:
            at = (torch.as_tensor(scheduler.timesteps) == timestep).nonzero()
            self._step = int(at[0]) if len(at) else -1
        self._on_step(self._canvas or self._predicted)

    def _predicted(self, row: int) -> Pixels | None:
        if not self._latents:
            return None
        latents = self._latents[-1][row]
        if len(self._latents) == 2 and self._schedule and 0 <= self._step < len(self._schedule) - 1:
            before, after = self._schedule[self._step], self._schedule[self._step + 1]
            latents = predict_x0(self._latents[0][row], latents, before, after)
        return self._preview_map.render(latents, *self._size)


def row_seed(row: Row) -> int:
    """Picture i of a job has the job's seed + i."""
    return (row.job.seed + row.index) % SEED_MODULUS


def _scalar_or_list(values: list[Any]) -> Any:
    """Some pipelines take a list only for batches of two or more."""
    return values[0] if len(values) == 1 else values


def _max_sequence_length(pipeline: Any) -> dict[str, int]:
    """The length that prompts are padded to: less than the default if the only tokenizer has a smaller limit.

    Pipelines of the FLUX.2 family attend to the padding, which costs time.
    """
    lengths = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    tokenizer = getattr(pipeline, "tokenizer", None)
    if lengths is None or not isinstance(lengths.default, int) or tokenizer is None or hasattr(pipeline, "tokenizer_2"):
        return {}
    return {"max_sequence_length": min(lengths.default, tokenizer.model_max_length)}


def _guidance(accepted: Mapping[str, Any], jobs: Sequence[ImageJob]) -> dict[str, Any]:
    """The guidance and negative prompts as a pipeline takes them.

    Where `guidance_scale` is absent or defaults to None, as in Qwen-Image's call, classifier-free guidance is
    `true_cfg_scale`, and it is applied only if there is a negative prompt, even a blank one.
    """
    guidance_scale, guidance = accepted.get("guidance_scale"), jobs[0].sampling.guidance
    negatives = [job.sampling.negative_prompt for job in jobs]
    if "true_cfg_scale" in accepted and (guidance_scale is None or guidance_scale.default is None):
        negatives_or_blank = _scalar_or_list([negative or " " for negative in negatives])
        return {"true_cfg_scale": guidance, "negative_prompt": negatives_or_blank}
    return {"guidance_scale": guidance, "negative_prompt": _scalar_or_list(negatives) if any(negatives) else None}
