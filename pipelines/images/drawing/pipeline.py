"""An image through diffusers' pipelines, which differ by the arguments of their calls (pipelines/families).

Work on the device and work on the host are apart, so that the device serves another run while an image is finished.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import SchedulerMixin
from PIL import Image

from pipelines.checkpoints.work.estimate import image_steps
from pipelines.checkpoints.work.plan import Plan, fit_to_area, partial, plan_job, task_of
from pipelines.device.memory import compute_dtype
from pipelines.device.staged_copy import Transfer, sum_of
from pipelines.families.task import Task
from pipelines.images.denoising.late_start import LateStart
from pipelines.images.denoising.own_noise import bind_generator, new_generator, own_noise, tile_seed
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import OnStep, Pixels, PreviewFn, StepObserver
from pipelines.images.drawing.finish import (
    align_reference,
    binary_mask,
    center_crop,
    combine_references,
    composite,
    fit_image,
    in_place,
    thumbnail,
    to_drawn_size,
)
from pipelines.images.drawing.image_checks import InvalidImage
from pipelines.images.drawing.returned_image import ReturnedImage, record_decoded_sums
from pipelines.images.drawing.tiling import Upscaling, refine
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.component_fixes import restored_dtype
from pipelines.images.loading.controls import NETS
from pipelines.images.loading.safety_checker import check_flags, ignore_flags
from pipelines.images.prompts.reading import reading
from pipelines.images.scheduling.batching import LAYERS, Row
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.finished_image import to_planned_size
from pipelines.protocol.images import Background, ImageJob, LongPrompt, RawImage
from pipelines.protocol.pixels import flattened, has_alpha, to_image, with_alpha, with_background


@dataclass(frozen=True, slots=True)
class GeneratedImage:
    """The image that one pipeline call drew, on its way to the host."""

    returned: ReturnedImage
    size: tuple[int, int]  # that was asked for: width, height in px
    from_canvas: bool  # of that size: a pipeline that draws another one has stretched it
    background: Background
    last_latents: Transfer | None  # for the preview map, if it may have them
    dtype: torch.dtype  # that the checkpoint computes in

    def image(self, preview_map: PreviewMap) -> Image.Image:
        """Return the image at `size`, with the background that was asked for, and fit the preview map to it. Blocks;
        needs no device. Raises InvalidImage, NoTransparency and WrongSize."""
        if not self.returned.is_finite:
            raise InvalidImage(self.dtype)
        image = self.returned.image()
        if self.last_latents is not None:
            preview_map.update(self.last_latents.wait(), np.asarray(image))
        return to_planned_size(with_background(image, self.background), self.size, stretched=self.from_canvas)


@dataclass(frozen=True, slots=True)
class ImagePipeline:
    """Draws one row, an image of a job, with its checkpoint. `on_step` is called after each denoising step and may
    raise to stop; `on_call` before each pipeline call, with the width and height in px that it draws. `on_host` is
    entered for work that needs no device, between two pipeline calls."""

    checkpoint: Checkpoint
    row: Row
    on_step: OnStep
    preview_map: PreviewMap
    on_host: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    on_call: Callable[[tuple[int, int]], None] = lambda _: None

    @property
    def job(self) -> ImageJob:
        """Return the row's job."""
        return self.row.job

    @property
    def plan(self) -> Plan:
        """Plan the size that is drawn for the job's image."""
        return plan_job(self.job, self.checkpoint.multiple_px)

    @property
    def steps(self) -> int:
        """Return the number of denoising steps, over both passes and all tiles."""
        return image_steps(self.job, self.plan)

    def draw(self) -> Callable[[], Pixels]:
        """Do all work that needs the device. The function that is returned needs none, and gives the image, at exactly
        its size.

        Raises UnsupportedTask and BlockedImage; both raise InvalidImage, NoTransparency and WrongSize.
        """
        self._check_capabilities()
        plan = self.plan
        size = (self.job.width_px, self.job.height_px)
        if plan.finish == "enlarge":
            return self._enlarge(plan, size)
        if self.job.sampling.strength == 0 and task_of(self.job) in {Task.REDRAW, Task.INPAINT}:
            return lambda: self._finish(fit_image(to_image(self.job.references[0]), self.job))
        if self.checkpoint.family.layers is not None:
            self.row.found[LAYERS] = self.job.n
        drawn = self.row.drawn.pop(self.row.index, None) or self._first_pass(plan)
        if plan.finish != "refine":
            return lambda: self._finish(self._resize(drawn.image(self.preview_map), size))
        with self.on_host():
            image = drawn.image(self.preview_map)
            canvas = self._resize(flattened(image), size)
            alpha = self._resize(image.getchannel("A"), size) if has_alpha(image) else None
        refine(canvas, plan.tiles, lambda tile, number: self._redraw(tile, number, canvas), self.on_host)
        return lambda: self._finish(canvas if alpha is None else with_alpha(canvas, alpha))

    def _enlarge(self, plan: Plan, size: tuple[int, int]) -> Callable[[], Pixels]:
        """Redraw the tiles of the reference, enlarged to the size; or enlarge each by an upscaler."""
        if self.checkpoint.is_upscaler:
            upscaling = Upscaling(self.checkpoint.denoiser, self.checkpoint.device, self.on_host, self._after_tile)
            self.on_call((plan.tiles[0].width, plan.tiles[0].height))
            with torch.inference_mode():
                canvas = upscaling.enlarge(to_image(self.job.references[0]), plan.tiles, size)
            return lambda: self._finish(canvas)
        with self.on_host():
            canvas = self._at_drawn_size(self.job.references[0])
        refine(canvas, plan.tiles, lambda tile, number: self._redraw(tile, number, canvas), self.on_host)
        return lambda: self._finish(center_crop(canvas, size))

    def generate(self) -> Pixels:
        """Draw the image, where no other run waits for the device. Raises the errors of `draw`."""
        return self.draw()()

    def _resize(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        if self.plan.region is not None:
            return in_place(image, self.job, self.plan.region)
        if self.plan.finish == "crop":
            return center_crop(image, size)
        return image.resize(size, Image.Resampling.LANCZOS)

    def _finish(self, image: Image.Image) -> Pixels:
        return np.asarray(composite(image, self.job))

    def _check_capabilities(self) -> None:
        capabilities, sampling = self.checkpoint.capabilities, self.job.sampling
        if not capabilities.negative_prompt and sampling.negative_prompt:
            raise UnsupportedTask("it takes no negative prompt", "negative_prompt")
        if not capabilities.guidance and sampling.guidance != self.job.checkpoint.sampling.guidance:
            raise UnsupportedTask("it draws without guidance", "guidance")
        if sampling.long_prompt not in capabilities.long_prompts:
            raise UnsupportedTask("it can't read a long prompt in parts", "long_prompt")

    @property
    def _long_prompt(self) -> LongPrompt:
        """Return the treatment of a prompt that is too long; warmup's own is never refused."""
        asked = self.job.sampling.long_prompt
        return "tell" if self.row.is_check and asked == "refuse" else asked

    def _first_pass(self, plan: Plan) -> GeneratedImage:
        job, size = self.job, (plan.width, plan.height)
        seed = self.row.seed
        observer = StepObserver(self._after_step, self.preview_map, size)
        match task_of(job):
            case Task.TEXT:
                return self._call(Task.TEXT, seed, size, observer)
            case Task.NATIVE:
                images = [self._as_read(to_image(reference)) for reference in job.references]
                first, *others = images if job.sheet_from is None else combine_references(images, job.sheet_from)
                if self.checkpoint.takes_size(Task.NATIVE):
                    aligned = align_reference(first, job, plan)
                    first = aligned if aligned.size == size else self._bound_reference(first)
                else:  # it draws in the size of the reference
                    first = to_drawn_size(first, job, plan)
                accepted = inspect.signature(self.checkpoint.task_classes[Task.NATIVE].__call__).parameters
                given = self.checkpoint.family.reference_arguments(accepted, first, others)
                return self._call(Task.NATIVE, seed, size, observer, **given)
            case Task.REDRAW:
                if len(job.references) > 1:
                    raise UnsupportedTask("it takes one reference image")
                image = self._as_read(self._at_drawn_size(job.references[0]))
                return self._call(Task.REDRAW, seed, size, observer, job.sampling.strength, image=image)
            case Task.INPAINT:
                mask = None if job.mask is None else binary_mask(self._at_drawn_size(job.mask))
                image = self._as_read(self._at_drawn_size(job.references[0]))
                inputs: dict[str, Any] = {"image": image, "mask_image": mask}
                if others := [self._as_read(self._bound_reference(to_image(other))) for other in job.references[1:]]:
                    inputs["image_reference"] = others
                return self._call(Task.INPAINT, seed, size, observer, job.sampling.strength, **inputs)

    def _after_step(self, preview: PreviewFn) -> None:
        if self.checkpoint.step_caches is not None:
            self.checkpoint.step_caches.end_step()
        self.on_step(preview if self.plan.region is None else functools.partial(self._preview_in_place, preview))

    def _preview_in_place(self, preview: PreviewFn) -> Pixels | None:
        """Show a preview of the region that is drawn in its place."""
        pixels, region = preview(), self.plan.region
        if pixels is None or region is None:
            return pixels
        return thumbnail(composite(in_place(Image.fromarray(pixels), self.job, region), self.job))

    def _after_tile(self, canvas: Image.Image) -> None:
        self.on_step(lambda: thumbnail(canvas))

    def _as_read(self, reference: Image.Image) -> Image.Image:
        """Bring a reference into the mode in which the checkpoint's codec takes one. Raises UnsupportedTask where its
        classes would take such an image for latents, of which they draw another."""
        mode = self.checkpoint.read_mode
        if len(mode) == self.checkpoint.latent_channels:
            raise UnsupportedTask("its images and its latents have the same number of channels")
        return reference.convert(mode)

    def _at_drawn_size(self, image: RawImage) -> Image.Image:
        """Scale a reference, a mask or a map to the drawn size, each pixel where the finished image has it."""
        return to_drawn_size(to_image(image), self.job, self.plan)

    def _bound_reference(self, reference: Image.Image) -> Image.Image:
        """Return a reference of another shape than the image, at the native area where the call has no bound."""
        if not self.checkpoint.family.reads_any_size:
            return reference
        area_px = self.job.checkpoint.native_area_px
        size = fit_to_area(reference.width, reference.height, area_px, self.checkpoint.multiple_px)
        return reference.resize(size, Image.Resampling.LANCZOS)

    def _redraw(self, tile: Image.Image, number: int, canvas: Image.Image) -> Callable[[], Image.Image]:
        """Redraw a tile in the second pass; the function that is returned waits for it."""
        seed = tile_seed(self.row.seed, number)
        strength = self.job.sampling.refine_strength
        observer = StepObserver(self._after_step, self.preview_map, tile.size, lambda: thumbnail(canvas))
        images = {"image": self._as_read(tile)}
        task = self.checkpoint.second_pass_task
        if task is Task.INPAINT:
            images["mask_image"] = Image.new("L", tile.size, 255)
        if self.checkpoint.spec.own_map is not None:
            place = self.plan.tiles[number]
            box = (place.left, place.top, place.left + place.width, place.top + place.height)
            images["control_image"] = fit_image(to_image(self._own_map), self.job).crop(box)
        drawn = self._call(task, seed, tile.size, observer, strength, is_tile=True, **images)
        return lambda: drawn.image(self.preview_map)

    @property
    def _own_map(self) -> RawImage:
        """Return the map that the checkpoint draws from with every call. Raises UnsupportedTask."""
        own = self.checkpoint.controls.of_kind(("map",), self.job.controls)
        if not own:
            raise UnsupportedTask("it draws from a map with every call", "controls")
        return own[0].image

    def _call(
        self, task: Task, seed: int, size: tuple[int, int], observer: StepObserver,
        strength: float | None = None, *, is_tile: bool = False, **images: Any,
    ) -> GeneratedImage:  # fmt: skip
        """Call the pipeline once. Arguments that its signature lacks are left out, but for images. Raises
        UnsupportedTask if it takes no such image, and BlockedImage if the checkpoint's own safety checker flags the
        result.

        `strength` is None for a call that starts from noise.
        """
        sampling, controls, family = self.job.sampling, self.checkpoint.controls, self.checkpoint.family
        nets = [] if is_tile else controls.of_kind(NETS, self.job.controls)  # a tile has the image to follow
        pipeline = family.prepared(self.checkpoint.pipeline(task, sampling, nets), *size)
        if self.row.is_check:
            ignore_flags(pipeline)
        accepted = inspect.signature(pipeline.__call__).parameters
        if nets:
            images |= controls.net_arguments(accepted, nets, self._at_drawn_size)
        images |= controls.adapter_arguments(accepted, self.job.controls)
        if self.checkpoint.spec.own_map is not None:
            images.setdefault("control_image", self._at_drawn_size(self._own_map))
        part = None if strength is None else partial(sampling.steps, strength)
        steps = sampling.steps if part is None else part.steps
        if part is not None and self.checkpoint.starts_late(task):
            late = LateStart(pipeline, images.pop("image"), part.run, images.pop("mask_image", None))
            observer.restore = late.restore
        if missing := [name for name in images if name not in accepted]:
            raise UnsupportedTask(f"{type(pipeline).__name__} takes no {missing[0]}")
        generator = new_generator(seed)
        for component in pipeline.components.values():
            if isinstance(component, SchedulerMixin):
                bind_generator(component, generator)
        prompt = family.prompt(self.job.prompt, len(self.job.references) if task is Task.NATIVE else 0)
        arguments: dict[str, Any] = {
            "prompt": prompt,
            **family.size_arguments(*size),
            "num_inference_steps": steps,
            "strength": None if part is None else part.strength,
            "generator": generator,
            "output_type": family.output_type,
            "max_sequence_length": family.max_sequence_length(accepted, pipeline),
            **family.always,
            **({family.layers: self.job.n} if family.layers is not None else {}),
            **family.guidance(sampling.guidance, sampling.negative_prompt, steps),
            **observer.callback(accepted, pipeline.scheduler),
            **images,
        }
        arguments = {name: value for name, value in arguments.items() if name in accepted and value is not None}
        self.on_call(size)
        sums = record_decoded_sums(pipeline)
        prompts = {"prompt": prompt, "negative_prompt": sampling.negative_prompt}
        with (
            self._without_gradients, restored_dtype(self.checkpoint.components.get("vae")), own_noise(seed),
            reading(prompts, self._long_prompt) as reader,
        ):  # fmt: skip
            output = pipeline(**arguments)
            reader.require_whole()  # a class may tokenize where nothing watched it before
            self.row.found |= reader.found()
            check_flags(output)
            latents = observer.last_latents
            all_sums = [*sums, *([] if latents is None else [sum_of(latents)])]
            is_for_map = not (is_tile or self._is_check_of_file or family.layers is not None)
            for_map = Transfer(latents) if is_for_map and latents is not None else None
            background = "opaque" if is_tile else self.job.encoding.background

            def drawn(image: Any) -> GeneratedImage:
                return GeneratedImage(
                    ReturnedImage(image, all_sums), size, part is not None, background, for_map, self._dtype
                )

            returned = family.images(output)
            if family.layers is None:
                return drawn(returned)
            layers = [drawn(each) for each in returned.split(1)]
            self.row.drawn.update(enumerate(layers))
            del self.row.drawn[self.row.index]
            return layers[self.row.index]

    @property
    def _without_gradients(self) -> contextlib.AbstractContextManager[object]:
        """Return the mode to draw in. Weights that move within a run would be tensors of inference mode from then on,
        which take no adapter."""
        return torch.inference_mode() if self.checkpoint.runtime.offload == "none" else torch.no_grad()

    @property
    def _is_check_of_file(self) -> bool:
        """Return whether warmup tries an adapter or a control in it: a file that nobody need ever ask for, which leaves
        no trace in the preview map."""
        return self.row.is_check and bool(self.job.sampling.loras or self.job.controls)

    @property
    def _dtype(self) -> torch.dtype:
        return compute_dtype(self.checkpoint.runtime.dtype, self.checkpoint.device)
