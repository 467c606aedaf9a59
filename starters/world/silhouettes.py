"""An object's kind and size by the outline of its colour, held against the thirteen drawings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from starters.world.layout import SCALE
from starters.world.scene import KINDS, MEASURES, Kind, Measure
from starters.world.shapes import parts_of

Mask = npt.NDArray[np.bool_]

GRID: Final = 28
STRAY: Final = 0.05  # of the fullest row or column: emptier ones at the rim are stray pixels
TALL: Final = 240  # the unit of the drawings that are compared with


@dataclass(frozen=True, slots=True)
class Silhouette:
    """A mask stretched over its own bounding box, and how large that box was."""

    cells: npt.NDArray[np.float32]
    width: int
    height: int


def silhouette_of(mask: Mask) -> Silhouette:
    """The silhouette of the pixels that are set."""
    top, bottom = _span(mask.sum(1))
    left, right = _span(mask.sum(0))
    cut = Image.fromarray(mask[top:bottom, left:right].astype(np.uint8) * 255)
    cells = np.asarray(cut.resize((GRID, GRID), Image.Resampling.BOX)).astype(np.float32)
    return Silhouette(cells / np.float32(255), right - left, bottom - top)


def guess_kind(shape: Silhouette) -> Kind:
    """The kind whose drawing differs least."""
    drawings = _drawings()
    return min(KINDS, key=lambda kind: _difference(shape, drawings[kind]))


def guess_size(shape: Silhouette, kind: Kind, unit: float) -> Measure:
    """The size that is nearer, for an object of this kind where a large one has this unit."""
    share = shape.height / (_drawings()[kind].height / TALL * unit)
    return min(MEASURES, key=lambda measure: abs(np.log(share / SCALE[measure])))


def _difference(shape: Silhouette, drawing: Silhouette) -> float:
    stretched = abs(np.log((shape.width / shape.height) / (drawing.width / drawing.height)))
    return float(np.abs(shape.cells - drawing.cells).mean() + 0.35 * stretched)


def _span(counts: npt.NDArray[np.int_]) -> tuple[int, int]:
    full = np.flatnonzero(counts > STRAY * counts.max())
    return int(full[0]), int(full[-1]) + 1


@cache
def _drawings() -> Mapping[Kind, Silhouette]:
    return {kind: silhouette_of(_drawn(kind)) for kind in KINDS}


def _drawn(kind: Kind) -> Mask:
    """The pixels of an object that have its own colour."""
    image = Image.new("1", (2 * TALL, 2 * TALL))
    draw = ImageDraw.Draw(image)
    for part in parts_of(kind):
        flipped = (part.outline * (1, -1) + (1, 1.5)) * TALL
        draw.polygon(flipped.ravel().tolist(), fill=int(part.role in {"body", "shade"}))
    return np.asarray(image)
