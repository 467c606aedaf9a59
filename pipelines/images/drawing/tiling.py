"""The second pass of a large image: the upscaled image is redrawn tile by tile, in place.

Each tile starts from the canvas, including its already redrawn left and upper edges, so neighbours agree before they
are blended. Only one tile is on the device at a time; the canvas is an 8-bit image on the host.
"""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from pipelines.checkpoints.work.plan import OVERLAP, Tile


def refine(
    canvas: Image.Image,
    tiles: Sequence[Tile],
    redraw: Callable[[Image.Image, int], Callable[[], Image.Image]],
    on_host: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Redraw every tile and blend it in, in place. `redraw` gets a tile and its number; the function that it returns
    gives the new tile, within `on_host`.
    """
    for number, tile in enumerate(tiles):
        box = (tile.left, tile.top, tile.left + tile.width, tile.top + tile.height)
        finish = redraw(canvas.crop(box), number)
        with on_host():
            canvas.paste(finish(), box[:2], feather(tile))


def feather(tile: Tile) -> Image.Image:
    """Return the blend mask of a tile, mode "L": a ramp over the overlap with the tiles to the left and above."""
    across = _ramp(tile.width, has_neighbour=tile.left > 0)
    down = _ramp(tile.height, has_neighbour=tile.top > 0)
    return Image.fromarray((np.outer(down, across) * 255).round().astype(np.uint8))


def _ramp(length: int, *, has_neighbour: bool) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    weights = np.ones(length, dtype=np.float32)
    overlap = int(length * OVERLAP)
    if has_neighbour and overlap:
        weights[:overlap] = np.linspace(0, 1, overlap, dtype=np.float32)
    return weights
