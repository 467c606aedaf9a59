"""The second pass of a large picture: an enlarged picture is redrawn tile by tile, in place.

Each tile starts from what is on the canvas, its already redrawn left and upper edges included, so neighbours agree
before they are blended. Only one tile is on the device at a time; the canvas is eight bits a channel on the host.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from pipelines.catalog.plan import OVERLAP, Tile


def refine(
    canvases: list[Image.Image],
    tiles: Sequence[Tile],
    redraw: Callable[[list[Image.Image], int], list[Image.Image]],
) -> list[Image.Image]:
    """The canvases with every tile redrawn and blended in. `redraw` gets one tile of each canvas, and its number."""
    for number, tile in enumerate(tiles):
        box = (tile.left, tile.top, tile.left + tile.width, tile.top + tile.height)
        drawn = redraw([canvas.crop(box) for canvas in canvases], number)
        for canvas, redrawn in zip(canvases, drawn, strict=True):
            canvas.paste(redrawn, box[:2], feather(tile))
    return canvases


def feather(tile: Tile) -> Image.Image:
    """How much of a redrawn tile counts, as "L" pixels: a ramp over the overlap with the tiles left of it and above."""
    across = _ramp(tile.width, starts_inside=tile.left > 0)
    down = _ramp(tile.height, starts_inside=tile.top > 0)
    return Image.fromarray((np.outer(down, across) * 255).round().astype(np.uint8))


def _ramp(length: int, *, starts_inside: bool) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    weights = np.ones(length, dtype=np.float32)
    overlap = int(length * OVERLAP)
    if starts_inside and overlap:
        weights[:overlap] = np.linspace(0, 1, overlap, dtype=np.float32)
    return weights
