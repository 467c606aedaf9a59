"""Where polygons become pixels, in one of the four styles.

Everything is drawn some times too large and reduced, which is the anti-aliasing. A layer is a group of polygons that
casts one shadow (paper-cut) or one glow (neon) on what lies behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from starters.world.geometry import Points
from starters.world.layout import Layout
from starters.world.palette import INK, RGB, mix
from starters.world.scene import Style


@dataclass(frozen=True, slots=True)
class Piece:
    """A polygon in pixels of the finished image."""

    outline: Points
    colour: RGB


class Canvas:
    """An image that is being drawn."""

    def __init__(self, layout: Layout, style: Style, sky: Sequence[RGB]) -> None:
        self.width, self.height, self.style, self.stroke = layout.width, layout.height, style, layout.stroke
        self._factor = 3 if max(self.width, self.height) <= 1300 else 2
        rows = _gradient(sky, round(layout.horizon + 0.02 * layout.height), self.height)
        size = (self.width * self._factor, self.height * self._factor)
        self._image = Image.fromarray(rows[:, None]).resize(size, Image.Resampling.NEAREST)
        self._draw = ImageDraw.Draw(self._image)

    def fill(self, outline: Points, colour: RGB) -> None:
        """A polygon without any style."""
        self._draw.polygon(self._scaled(outline), fill=colour)

    def trace(self, path: Points, colour: RGB, width: float) -> None:
        """A line."""
        self._draw.line(self._scaled(path), fill=colour, width=max(1, round(width * self._factor)), joint="curve")

    def layer(self, pieces: Sequence[Piece], *, glow: RGB | None = None, rim: RGB | None = None) -> None:
        """Polygons from back to front, in the image's style. `rim` sets them off from what is behind."""
        if self.style == "paper-cut":
            self._shadow(pieces)
        if self.style == "night-neon" and glow is not None:
            self._soft([piece.outline for piece in pieces], 4 * self.stroke, glow, 0.85)
            rim = None
        if rim is not None:
            for piece in pieces:
                self._outline(piece, rim, 2.6)
        for piece in pieces:
            self.fill(piece.outline, piece.colour)
            if self.style == "outlined":
                self._outline(piece, INK, 1.25)
            elif self.style == "night-neon" and glow is not None:
                self._outline(piece, mix(piece.colour, (255, 255, 255), 0.5), 0.7)

    def sheet(self, edge: Points, colour: RGB) -> None:
        """Everything below a line that runs from the left edge to the right one."""
        if self.style == "paper-cut":  # a shadow of the edge alone: the rest of it would be painted over
            self._shadow([Piece(np.concatenate([edge, (edge + np.array((0, 3 * self.stroke)))[::-1]]), colour)])
        low = self.height + 9
        self.fill(np.concatenate([edge, ((edge[-1, 0], low), (edge[0, 0], low))]), colour)

    def finished(self) -> Image.Image:
        """The image."""
        return self._image.reduce(self._factor)

    def _outline(self, piece: Piece, colour: RGB, strokes: float) -> None:
        closed = np.concatenate([piece.outline, piece.outline[:2]])
        self.trace(closed, colour, strokes * self.stroke)

    def _shadow(self, pieces: Sequence[Piece]) -> None:
        shift = np.array((0.8, 1.3)) * self.stroke
        self._soft([piece.outline + shift for piece in pieces], 1.6 * self.stroke, (18, 18, 40), 0.42)

    def _soft(self, outlines: Sequence[Points], radius: float, colour: RGB, opacity: float) -> None:
        """The blurred union of some polygons. Drawn small, because what is soft has no detail to lose."""
        low = np.min([outline.min(0) for outline in outlines], axis=0) - 3 * radius
        high = np.max([outline.max(0) for outline in outlines], axis=0) + 3 * radius
        left, top = np.maximum(0, np.floor(low)).astype(int).tolist()
        right, bottom = np.minimum((self.width, self.height), np.ceil(high)).astype(int).tolist()
        if left >= right or top >= bottom:
            return
        small = min(1.0, 4 / radius)
        size = (max(1, round((right - left) * small)), max(1, round((bottom - top) * small)))
        scale = np.array(size) / (right - left, bottom - top)
        mask = Image.new("L", size)
        draw = ImageDraw.Draw(mask)
        for outline in outlines:
            draw.polygon(((outline - (left, top)) * scale).ravel().tolist(), fill=round(255 * opacity))
        mask = mask.filter(ImageFilter.BoxBlur(max(0.5, radius * small)))
        place = ((right - left) * self._factor, (bottom - top) * self._factor)
        mask = mask.resize(place, Image.Resampling.BILINEAR)
        self._image.paste(colour, (left * self._factor, top * self._factor), mask)

    def _scaled(self, outline: Points) -> list[float]:
        scaled: list[float] = (outline * self._factor).ravel().tolist()
        return scaled


def _gradient(colours: Sequence[RGB], bottom: int, rows: int) -> npt.NDArray[np.uint8]:
    """A colour for each row: through all colours from the top edge to `bottom`, then the last one."""
    at = np.arange(rows) / bottom * (len(colours) - 1)
    table = np.array(colours, dtype=np.float64)
    column = np.stack([np.interp(at, np.arange(len(colours)), table[:, c]) for c in range(3)], axis=1)
    return column.round().astype(np.uint8)
