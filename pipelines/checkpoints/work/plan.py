"""How a checkpoint with a native area draws an image of any size. Pure.

A size near the native area is drawn directly. A smaller one is drawn at the native area and downscaled. A larger one is
drawn at the native area and upscaled. If it is more than slightly larger, a second pass redraws it tile by tile: each
tile is a native-sized image, so memory does not grow with the image. How references condition it, its task, is here
since the work estimate and the server ask too.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pipelines.families.task import Task
from pipelines.protocol.images import Box, CheckpointSpec, Conditioning, ImageJob, Sampling

MIN_NATIVE_SHARE = 0.5  # of the native area: a checkpoint draws smaller sizes badly, so they are downscaled instead
MAX_UPSCALE = 1.85e6 / 2**20  # of the area, in one pass: from a native megapixel to the largest 1K image
MIN_STRENGTH = 0.01  # less would need a schedule finer than the thousand steps that checkpoints are trained on
OVERLAP = 1 / 8  # of a tile, blended with its neighbour
CONTEXT = 2  # sides of the part that is drawn for a hole, by the hole's
MAX_ZOOM = 4  # by which that part is drawn larger: beyond it, there is no more to see in its surroundings
MAX_REGION_SHARE = 0.5  # of the image's area; nor is it larger than what the pipeline draws at once


class Mode(NamedTuple):
    """A conditioning mode of catalog files."""

    task: Task  # of a request with references and no mask
    max_references: int  # unless the catalog file says


MODES: Mapping[Conditioning, Mode] = {
    "img2img": Mode(Task.REDRAW, max_references=1),
    "native": Mode(Task.NATIVE, max_references=16),
    "upscale": Mode(Task.REDRAW, max_references=1),
}


def task_of(job: ImageJob) -> Task:
    """Return the task of every image of a job."""
    return find_task(job.checkpoint, has_references=bool(job.references), has_mask=job.mask is not None)


def find_task(spec: CheckpointSpec, *, has_references: bool, has_mask: bool) -> Task:
    """Return the task of a request to a checkpoint, before there is a job."""
    if not has_references:
        return Task.TEXT
    return Task.INPAINT if has_mask else MODES[spec.conditioning].task


@dataclass(frozen=True, slots=True)
class Plan:
    """The pipeline draws `width` x `height`; `finish` is how that becomes the final size."""

    width: int
    height: int
    finish: Literal["crop", "resize", "refine", "enlarge"]
    tiles: tuple[Box, ...] = ()
    region: Box | None = None  # of the final image that is drawn; all of it without one


def plan_job(job: ImageJob, multiple: int) -> Plan:
    """Plan a job's images, as `plan_image` does; the tiles of an enlarged reference cover it, rounded up. Those of an
    upscaler cover the reference as it is sent."""
    width, height = job.width_px, job.height_px
    if job.checkpoint.conditioning == "upscale":
        image, side = job.references[0], math.isqrt(job.checkpoint.native_area_px)
        return Plan(width, height, "enlarge", tile_grid(image.width_px, image.height_px, side, 1))
    if job.region is not None:
        area_px = job.checkpoint.native_area_px
        return Plan(*fit_to_area(job.region.width, job.region.height, area_px, multiple), "resize", region=job.region)
    if not job.enlarges:
        return plan_image(job.checkpoint, width, height, multiple)
    canvas = (_round_up(width, multiple), _round_up(height, multiple))
    side = _round_down(math.isqrt(job.checkpoint.native_area_px), multiple)
    return Plan(*canvas, "enlarge", tile_grid(*canvas, side, multiple))


def plan_image(spec: CheckpointSpec, width: int, height: int, multiple: int) -> Plan:
    """Plan an image of width x height pixels. `multiple` divides both sides of the image that the pipeline draws."""
    area = width * height
    if spec.native_area_px * MIN_NATIVE_SHARE <= area <= spec.max_area_px:
        return Plan(_round_up(width, multiple), _round_up(height, multiple), "crop")
    drawn = fit_to_area(width, height, spec.native_area_px, multiple)
    if spec.enlarge == "resize" or not needs_two_passes(area, spec.native_area_px, spec.max_area_px):
        return Plan(*drawn, "resize")
    return Plan(
        *drawn, "refine", tile_grid(width, height, _round_down(math.isqrt(spec.native_area_px), multiple), multiple)
    )


def region_around(hole: Box, width: int, height: int, native_area_px: int) -> Box | None:
    """Return the part of an image of width x height pixels that is drawn for a small hole in its mask: the hole with as
    much around it as the pipeline needs to continue it, which is drawn larger than it is; None where that gains
    nothing. The part is not longer than twice its other side, as far as the image is wide and high enough."""
    least = math.isqrt(native_area_px) / MAX_ZOOM
    wide, high = (max(CONTEXT * side, least) for side in (hole.width, hole.height))
    wide, high = max(wide, high / 2), max(high, wide / 2)
    wide, high = min(width, math.ceil(wide)), min(height, math.ceil(high))
    if wide * high > min(MAX_REGION_SHARE * width * height, native_area_px):
        return None
    left = round(hole.left + hole.width / 2 - wide / 2)
    top = round(hole.top + hole.height / 2 - high / 2)
    return Box(min(max(0, left), width - wide), min(max(0, top), height - high), wide, high)


def needs_two_passes(area_px: int, native_area_px: int, max_area_px: int) -> bool:
    """Return whether an image of this area gets the second, tiled pass."""
    return area_px > max(max_area_px, MAX_UPSCALE * native_area_px)


def fit_to_area(width: int, height: int, area_px: int, multiple: int) -> tuple[int, int]:
    """Return the sides nearest to this aspect ratio that are multiples of `multiple`, with at most this area if
    possible."""
    scale = math.sqrt(area_px / (width * height)) / multiple
    sides = [{max(1, math.floor(side * scale + 1e-9)), math.ceil(side * scale - 1e-9)} for side in (width, height)]
    fits = [(w, h) for w, h in itertools.product(*sides) if w * h * multiple**2 <= area_px]
    best = min(
        fits or [(min(sides[0]), min(sides[1]))], key=lambda size: abs(math.log(size[0] / size[1] * height / width))
    )
    return best[0] * multiple, best[1] * multiple


def tile_grid(width: int, height: int, side: int, multiple: int) -> tuple[Box, ...]:
    """Return overlapping tiles that cover the canvas, row by row. Their sides are multiples of `multiple`, `side` at
    most."""
    tile_width = min(side, _round_down(width, multiple))
    tile_height = min(side, _round_down(height, multiple))
    lefts, tops = _tile_starts(width, tile_width), _tile_starts(height, tile_height)
    return tuple(Box(left, top, tile_width, tile_height) for top in tops for left in lefts)


@dataclass(frozen=True, slots=True)
class Partial:
    """A denoising run that starts part of the way into the schedule, as image-to-image pipelines do."""

    steps: int  # num_inference_steps to pass: the whole schedule
    strength: float  # to pass: steps * strength is `run` exactly, in floating point too
    run: int  # how many steps then run, the last ones


def partial(steps: int, strength: float) -> Partial:
    """Return the arguments with which a pipeline runs about steps * strength of `steps`, and at least one.

    Below strength 1 it also skips at least one: the first step starts from pure noise, so a flow-matching pipeline,
    which rounds its steps up where the others round down, would lose the image altogether. A strength without a
    fraction of a step makes both kinds run the same. `strength` is above 0 and at most 1.
    """
    if strength >= 1:
        return Partial(steps, 1.0, steps)
    steps = max(steps, 2, math.ceil(1 / max(strength, MIN_STRENGTH)))
    while True:
        run = min(steps - 1, max(1, int(steps * strength)))
        if steps * (run / steps) == run:
            return Partial(steps, run / steps, run)
        steps += 1  # rare, such as for 1 of 49: one more step of the schedule


def fit_refine_strength(sampling: Sampling) -> Sampling:
    """Return the sampling for a checkpoint that draws in no other number of steps: the second pass runs one of these,
    if its strength is less than one, instead of one of a longer schedule."""
    return replace(sampling, refine_strength=max(sampling.refine_strength, 1 / max(2, sampling.steps)))


def _tile_starts(length: int, tile: int) -> Sequence[int]:
    """Return evenly spread starts from 0 to length - tile with at least the overlap between neighbours."""
    if tile >= length:
        return [0]
    count = math.ceil((length - tile) / (tile * (1 - OVERLAP))) + 1
    return [round(i * (length - tile) / (count - 1)) for i in range(count)]


def _round_up(length: int, multiple: int) -> int:
    return math.ceil(length / multiple) * multiple


def _round_down(length: int, multiple: int) -> int:
    return max(1, length // multiple) * multiple
