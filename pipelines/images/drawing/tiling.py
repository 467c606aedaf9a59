"""The second pass of a large image: the upscaled image is redrawn tile by tile, in place.

Each tile starts from the canvas, including its already redrawn left and upper edges, so neighbours agree before they
are blended. Only one tile is on the device at a time; the canvas is an 8-bit image on the host.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from pipelines.checkpoints.work.plan import OVERLAP
from pipelines.device.staged_copy import sum_of
from pipelines.images.drawing.finish import with_colours_of
from pipelines.images.drawing.image_checks import InvalidImage
from pipelines.images.drawing.returned_image import ReturnedImage
from pipelines.images.loading.upscalers import Upscaler
from pipelines.protocol.images import Box


def refine(
    canvas: Image.Image,
    tiles: Sequence[Box],
    redraw: Callable[[Image.Image, int], Callable[[], Image.Image]],
    on_host: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Redraw every tile and blend it in, in place, in the colours that it had. `redraw` gets a tile and its number; the
    function that it returns gives the new tile, within `on_host`."""
    for number, tile in enumerate(tiles):
        box = (tile.left, tile.top, tile.left + tile.width, tile.top + tile.height)
        source = canvas.crop(box)
        finish = redraw(source, number)
        with on_host():
            canvas.paste(with_colours_of(source, finish()), box[:2], feather(tile))


def feather(tile: Box) -> Image.Image:
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


@dataclass(frozen=True, slots=True)
class Upscaling:
    """Enlarges images with a network on its device. `on_host` is entered for work that needs no device; `after_tile` is
    called with the canvas, and may raise to stop."""

    network: Upscaler
    device: torch.device
    on_host: Callable[[], contextlib.AbstractContextManager[None]]
    after_tile: Callable[[Image.Image], None]

    def enlarge(self, image: Image.Image, tiles: Sequence[Box], size: tuple[int, int]) -> Image.Image:
        """Return an image enlarged to `size`. `tiles` cover it. Raises InvalidImage."""
        factor = math.ceil(size[0] / image.width)
        canvas = Image.new("RGB", (factor * image.width, factor * image.height))
        for tile in tiles:
            box = (tile.left, tile.top, tile.left + tile.width, tile.top + tile.height)
            enlarged = self._enlarged(image.crop(box).convert("RGB"), factor)
            place = Box(*(factor * side for side in (tile.left, tile.top, tile.width, tile.height)))
            with self.on_host():
                if not enlarged.is_finite:
                    raise InvalidImage(self.network.dtype)
                drawn = enlarged.image().resize((place.width, place.height), Image.Resampling.LANCZOS)
                canvas.paste(drawn, (place.left, place.top), feather(place))
            self.after_tile(canvas)
        return canvas if canvas.size == size else canvas.resize(size, Image.Resampling.LANCZOS)

    def _enlarged(self, tile: Image.Image, factor: int) -> ReturnedImage:
        """Return a tile that is enlarged by the factor or more: a network of less is run again on what it drew."""
        levels = torch.from_numpy(np.array(tile)).permute(2, 0, 1)[None]
        colours, reached = levels.to(self.device).to(self.network.dtype) / 255, 1
        while reached < factor:
            colours, reached = self.network(colours.clamp(0, 1)), reached * self.network.scale
        return ReturnedImage(colours.clamp(0, 1), [sum_of(colours)])  # they overshoot at edges
