"""A batch through diffusers' pipelines, which differ by the arguments of their calls, never by their names.

A `BatchPipeline` draws a batch: rows that share every forward pass, each with its own prompt, seed and images. Work on
the device and work on the host are apart, so that the device serves another run while pictures are finished.
"""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from pipelines.catalog.conditioning import Task, task_of
from pipelines.catalog.estimate import picture_steps
from pipelines.catalog.plan import Plan, partial, plan_picture
from pipelines.images.batching import Row
from pipelines.images.call_arguments import guidance, max_sequence_length, scalar_or_list
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
from pipelines.images.previews import PreviewMap
from pipelines.images.step_observer import OnStep, Pixels, PreviewFn, StepObserver
from pipelines.images.tiling import refine
from pipelines.images.transfer import Pictures, Transfer
from pipelines.protocol.images import ImageJob

SEED_MODULUS = 2**63


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one pipeline call drew, on its way to the host."""

    pictures: Pictures
    size: tuple[int, int]  # that was asked for: width, height in px
    last_latents: Transfer | None  # of the first row

    def images(self, preview_map: PreviewMap) -> list[Image.Image]:
        """Each row's picture, at `size`. Fits the preview map. Blocks; needs no device. Raises WrongSize."""
        images = self.pictures.images()
        if self.last_latents is not None:
            preview_map.update(self.last_latents.wait(), np.asarray(images[0]))
        return [to_planned_size(image, self.size) for image in images]


@dataclass(frozen=True, slots=True)
class BatchPipeline:
    """A batch on its checkpoint. `on_step` is called after each denoising step and may raise to stop. `on_host` is
    entered for work that needs no device, between two pipeline calls.
    """

    checkpoint: Checkpoint
    rows: Sequence[Row]
    on_step: OnStep
    preview_map: PreviewMap
    on_host: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

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

    def draw(self) -> Callable[[], list[Pixels]]:
        """All that needs the device. What it returns needs none, and gives the rows' pictures, at exactly their size.

        Raises UnsupportedTask; both raise WrongSize.
        """
        self._check_abilities()
        plan = self.plan
        size = (self.job.width_px, self.job.height_px)
        drawn = self._first_pass(plan)
        if plan.finish != "refine":
            return lambda: self._finish(self._resize(drawn.images(self.preview_map), size))
        with self.on_host():
            canvases = self._resize(drawn.images(self.preview_map), size)
        refine(canvases, plan.tiles, lambda tiles, number: self._redraw(tiles, number, canvases), self.on_host)
        return lambda: self._finish(canvases)

    def generate(self) -> list[Pixels]:
        """The rows' pictures, where no other run waits for the device. Raises what `draw` raises."""
        return self.draw()()

    def _resize(self, images: list[Image.Image], size: tuple[int, int]) -> list[Image.Image]:
        if self.plan.finish == "crop":
            return [center_crop(image, size) for image in images]
        return [image.resize(size, Image.Resampling.LANCZOS) for image in images]

    def _finish(self, images: list[Image.Image]) -> list[Pixels]:
        return [np.asarray(composite(image, row.job)) for image, row in zip(images, self.rows, strict=True)]

    def _check_abilities(self) -> None:
        abilities, job = self.checkpoint.abilities, self.job
        if not abilities.negative_prompt and any(row.job.sampling.negative_prompt for row in self.rows):
            raise UnsupportedTask("it takes no negative prompt", "negative_prompt")
        if not abilities.guidance and job.sampling.guidance != job.checkpoint.sampling.guidance:
            raise UnsupportedTask("it draws without guidance", "guidance")

    def _first_pass(self, plan: Plan) -> Drawn:
        job, size = self.job, (plan.width, plan.height)
        seeds = [row_seed(row) for row in self.rows]
        observer = StepObserver(self._after_step, self.preview_map, size)
        match task_of(job):
            case Task.TEXT:
                return self._call(Task.TEXT, seeds, size, observer)
            case Task.NATIVE:
                first, *others = [to_image(reference) for reference in job.references]
                if self.checkpoint.takes_size(Task.NATIVE):
                    first = align_reference(first, job, size)
                else:  # it draws in the size of the reference
                    first = ImageOps.fit(first, size, Image.Resampling.LANCZOS)
                images = scalar_or_list([first, *others])
                return self._call(Task.NATIVE, seeds, size, observer, image=images)
            case Task.REDRAW:
                if len(job.references) > 1:
                    raise UnsupportedTask("it takes one reference image")
                strength = job.sampling.strength
                return self._call(Task.REDRAW, seeds, size, observer, strength, image=self._canvases(size))
            case Task.INPAINT:
                masks = [fit_mask(row.job.mask, size) for row in self.rows if row.job.mask is not None]
                inputs: dict[str, object] = {"image": self._canvases(size), "mask_image": scalar_or_list(masks)}
                if others := [to_image(reference) for reference in job.references[1:]]:
                    inputs["image_reference"] = others
                return self._call(Task.INPAINT, seeds, size, observer, job.sampling.strength, **inputs)

    def _after_step(self, preview: PreviewFn) -> None:
        if self.checkpoint.step_caches is not None:
            self.checkpoint.step_caches.end_step()
        self.on_step(preview)

    def _canvases(self, size: tuple[int, int]) -> Any:
        """Each row's first reference at the size that is drawn."""
        references = (to_image(row.job.references[0]) for row in self.rows)
        return scalar_or_list([ImageOps.fit(image, size, Image.Resampling.LANCZOS) for image in references])

    def _redraw(
        self, tiles: list[Image.Image], number: int, canvases: list[Image.Image]
    ) -> Callable[[], list[Image.Image]]:
        """One tile of every row in the second pass. Its seed derives from the picture's seed and the tile's number."""
        seeds = [(row_seed(row) * 1_000_003 + number + 1) % SEED_MODULUS for row in self.rows]
        strength = self.job.sampling.refine_strength
        size = tiles[0].size
        observer = StepObserver(self._after_step, self.preview_map, size, lambda row: thumbnail(canvases[row]))
        images = {"image": scalar_or_list(tiles)}
        task = self.checkpoint.second_pass_task
        if task is Task.INPAINT:
            images["mask_image"] = scalar_or_list([Image.new("L", size, 255)] * len(tiles))
        drawn = self._call(task, seeds, size, observer, strength, **images)
        return lambda: drawn.images(self.preview_map)

    def _call(
        self, task: Task, seeds: list[int], size: tuple[int, int], observer: StepObserver,
        strength: float | None = None, **images: object,
    ) -> Drawn:  # fmt: skip
        """One pipeline call. Arguments that its signature lacks are left out, but for images. Raises UnsupportedTask if
        it takes no such image.

        `strength` is None for a call that starts from noise.
        """
        sampling = self.job.sampling
        pipeline = self.checkpoint.pipeline(task, sampling)
        accepted = inspect.signature(pipeline.__call__).parameters
        if missing := [name for name in images if name not in accepted]:
            raise UnsupportedTask(f"{type(pipeline).__name__} takes no {missing[0]}")
        arguments: dict[str, Any] = {
            "prompt": scalar_or_list([row.job.prompt for row in self.rows]),
            "width": size[0],
            "height": size[1],
            "max_area": size[0] * size[1],  # some scale every size to this area, a megapixel by default
            "num_inference_steps": sampling.steps,
            "generator": scalar_or_list([torch.Generator("cpu").manual_seed(seed) for seed in seeds]),
            "output_type": "pt",
            **max_sequence_length(pipeline),
            **guidance(accepted, [row.job for row in self.rows]),
            **observer.callback(accepted),
            **images,
        }
        if strength is not None:
            part = partial(sampling.steps, strength)
            arguments |= {"num_inference_steps": part.steps, "strength": part.strength}
        arguments = {name: value for name, value in arguments.items() if name in accepted and value is not None}
        with torch.inference_mode():
            pictures = Pictures(pipeline(**arguments).images)
            latents = observer.last_latents
            return Drawn(pictures, size, None if latents is None else Transfer(latents))


def row_seed(row: Row) -> int:
    """Picture i of a job has the job's seed + i."""
    return (row.job.seed + row.index) % SEED_MODULUS
