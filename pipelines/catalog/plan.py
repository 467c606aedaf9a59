"""How a picture of a given size is drawn by a checkpoint that has a native area. Pure.

A size near the native area is drawn as it is. A smaller one is drawn at the native area and reduced. A larger one is
drawn at the native area and enlarged; unless it is only a little larger it is then redrawn tile by tile, each tile a
native-sized picture, so that the memory it takes does not grow with the picture.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.protocol.images import CheckpointSpec

SMALL = 0.5  # of the native area: below it a checkpoint draws badly, and its picture is reduced instead
SLIGHT = 1.85e6 / 2**20  # times the native area: what a native megapixel takes to the largest 1K picture
WEAKEST = 0.01  # strength: less asks for a schedule finer than the thousand steps that checkpoints are trained on
OVERLAP = 1 / 8  # of a tile, blended with its neighbour


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of the canvas that is redrawn at once."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`width` x `height` is what the pipeline draws; `finish` is how it becomes the final size."""

    width: int
    height: int
    finish: Literal["crop", "resize", "refine"]
    tiles: tuple[Tile, ...] = ()


def plan_picture(spec: CheckpointSpec, width: int, height: int, multiple: int) -> Plan:
    """The way to a picture of width x height pixels with a pipeline whose sides are multiples of `multiple`."""
    area = width * height
    if spec.native_area_px * SMALL <= area <= spec.max_area_px:
        return Plan(_up(width, multiple), _up(height, multiple), "crop")
    drawn = fitting(width, height, spec.native_area_px, multiple)
    if not takes_two_passes(area, spec.native_area_px, spec.max_area_px):
        return Plan(*drawn, "resize")
    return Plan(*drawn, "refine", cover(width, height, _down(math.isqrt(spec.native_area_px), multiple), multiple))


def takes_two_passes(area_px: int, native_area_px: int, max_area_px: int) -> bool:
    """Whether a picture of this area is redrawn in tiles."""
    return area_px > max(max_area_px, SLIGHT * native_area_px)


def fitting(width: int, height: int, area_px: int, multiple: int) -> tuple[int, int]:
    """The sides nearest to this shape that are multiples of `multiple` and have at most this area, if any have."""
    scale = math.sqrt(area_px / (width * height)) / multiple
    sides = [{max(1, math.floor(side * scale + 1e-9)), math.ceil(side * scale - 1e-9)} for side in (width, height)]
    fits = [(w, h) for w, h in itertools.product(*sides) if w * h * multiple**2 <= area_px]
    best = min(
        fits or [(min(sides[0]), min(sides[1]))], key=lambda size: abs(math.log(size[0] / size[1] * height / width))
    )
    return best[0] * multiple, best[1] * multiple


def cover(width: int, height: int, side: int, multiple: int) -> tuple[Tile, ...]:
    """Overlapping tiles that cover the canvas, row by row. Their sides are multiples of `multiple`, `side` at most."""
    tile_width = min(side, _down(width, multiple))
    tile_height = min(side, _down(height, multiple))
    lefts, tops = _starts(width, tile_width), _starts(height, tile_height)
    return tuple(Tile(left, top, tile_width, tile_height) for top in tops for left in lefts)


@dataclass(frozen=True, slots=True)
class Partial:
    """A denoising run that starts part of the way in, as image-to-image pipelines do."""

    steps: int  # of the whole schedule, to ask for
    strength: float  # to ask for: steps * strength is `run` exactly, in floating point too
    run: int  # how many are then run, the last ones


def partial(steps: int, strength: float) -> Partial:
    """What to ask of a pipeline so that it runs about steps * strength of `steps`, and at least one.

    Below strength 1 it also leaves at least one out: the first step starts from pure noise, so that a flow-matching
    pipeline, which rounds its steps up where the others round down, would forget the picture altogether. Asking for a
    strength without a fraction of a step makes both kinds run the same. `strength` is above 0 and at most 1.
    """
    if strength >= 1:
        return Partial(steps, 1.0, steps)
    steps = max(steps, 2, math.ceil(1 / max(strength, WEAKEST)))
    while True:
        run = min(steps - 1, max(1, int(steps * strength)))
        if steps * (run / steps) == run:
            return Partial(steps, run / steps, run)
        steps += 1  # rarely, such as for 1 of 49: one more step of the schedule


def _starts(length: int, tile: int) -> Sequence[int]:
    """Evenly spread starts from 0 to length - tile with at least the overlap between neighbours."""
    if tile >= length:
        return [0]
    count = math.ceil((length - tile) / (tile * (1 - OVERLAP))) + 1
    return [round(i * (length - tile) / (count - 1)) for i in range(count)]


def _up(length: int, multiple: int) -> int:
    return math.ceil(length / multiple) * multiple


def _down(length: int, multiple: int) -> int:
    return max(1, length // multiple) * multiple
