"""Sky, light, backdrop and ground."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from starters.world import palette
from starters.world.canvas import Canvas, Piece
from starters.world.geometry import Points, ellipse, points, rectangle, star, union
from starters.world.layout import Layout
from starters.world.palette import RGB, mix, tone_of
from starters.world.scene import Backdrop, Ground, Scene

WHITE: Final[RGB] = (255, 255, 255)
BLACK: Final[RGB] = (0, 0, 0)


def draw_sky(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """What is in the sky: stars, sun or moon. Its colours are the canvas's own."""
    if scene.style == "paper-cut":
        _draw_sheets(canvas, scene, layout)
    if scene.sky == "night":
        _draw_stars(canvas, layout)
    elif scene.sky == "overcast":
        _draw_veil(canvas, layout)
    if scene.light != "none":
        _draw_light(canvas, scene, layout)


def draw_backdrop(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """What stands at the horizon, or floats above it."""
    if scene.backdrop == "none":
        return
    colour = palette.BACKDROP[tone_of(scene)][scene.backdrop]
    pieces = DRAWERS[scene.backdrop](colour, scene, layout)
    glow = mix(colour, (200, 120, 255), 0.4) if scene.backdrop != "clouds" else colour
    canvas.layer(pieces, glow=glow)


def draw_ground(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """The ground with its pattern, and the line of the horizon."""
    colour = palette.GROUND[tone_of(scene)][scene.ground]
    edge = _edge(scene.ground, layout)
    canvas.sheet(edge, colour)
    _draw_pattern(canvas, scene.ground, colour, layout)
    if scene.style == "night-neon":
        canvas.trace(edge, palette.GLOW[scene.ground], 1.4 * layout.stroke)
    elif scene.style == "outlined":
        canvas.trace(edge, palette.INK, 1.25 * layout.stroke)


def _edge(ground: Ground, layout: Layout) -> Points:
    """The horizon: straight at sea, gently waved on land."""
    x = np.linspace(-9, layout.width + 9, 60)
    swell = 0 if ground == "sea" else 0.012 * min(layout.width, layout.height)
    wave = np.sin(x / layout.unit * (2.2 if ground == "desert" else 1.5) + layout.variant % 63 / 10)
    return np.stack([x, layout.horizon + swell * wave], axis=1)


def _draw_pattern(canvas: Canvas, ground: Ground, colour: RGB, layout: Layout) -> None:
    rng = np.random.default_rng((layout.variant, 3))
    depth = layout.height - layout.horizon
    x = np.linspace(-9, layout.width + 9, 60)
    for level, share in zip((0.7, 0.88), palette.NEARER[ground], strict=True):
        bend = 0.03 * depth * np.sin(x / layout.unit * 1.9 + rng.uniform(0, 6))
        front = np.stack([x, layout.horizon + level * depth + bend], axis=1)
        canvas.sheet(front, mix(colour, BLACK, share))
    if ground == "sea":
        _draw_waves(canvas, mix(colour, WHITE, 0.22), layout, rng)
    elif ground == "grass":
        _draw_tufts(canvas, mix(colour, BLACK, 0.2), layout, rng)
    else:
        _draw_specks(
            canvas, mix(colour, WHITE if ground == "snow" else BLACK, 0.3 if ground == "snow" else 0.14), layout, rng
        )


def _draw_waves(canvas: Canvas, colour: RGB, layout: Layout, rng: np.random.Generator) -> None:
    depth = layout.height - layout.horizon
    for _ in range(_count(layout, 6)):
        near = rng.uniform(0.08, 0.95)
        long = layout.unit * (0.12 + 0.3 * near)
        x, y = rng.uniform(0, layout.width), layout.horizon + near * depth
        t = np.linspace(-1, 1, 12)
        canvas.trace(np.stack([x + long * t / 2, y + 0.06 * long * np.cos(t * 5)], axis=1), colour, layout.stroke * 0.9)


def _draw_tufts(canvas: Canvas, colour: RGB, layout: Layout, rng: np.random.Generator) -> None:
    depth = layout.height - layout.horizon
    for _ in range(_count(layout, 6)):
        near = rng.uniform(0.12, 0.95)
        high = layout.unit * (0.03 + 0.06 * near)
        x, y = rng.uniform(0, layout.width), layout.horizon + near * depth
        for lean in (-0.5, 0.0, 0.5):
            root = high * 0.16
            canvas.fill(
                points((x + high * lean / 2 - root, y), (x + high * lean, y - high), (x + high * lean / 2 + root, y)),
                colour,
            )


def _draw_specks(canvas: Canvas, colour: RGB, layout: Layout, rng: np.random.Generator) -> None:
    depth = layout.height - layout.horizon
    for _ in range(_count(layout, 6)):
        near = rng.uniform(0.1, 0.97)
        radius = layout.unit * (0.006 + 0.012 * near)
        canvas.fill(
            ellipse(rng.uniform(0, layout.width), layout.horizon + near * depth, 1.7 * radius, radius, count=12), colour
        )


def _draw_stars(canvas: Canvas, layout: Layout) -> None:
    rng = np.random.default_rng((layout.variant, 4))
    for i in range(_count(layout, 12)):
        x, y = rng.uniform(0, layout.width), rng.uniform(0.02, 0.92) * layout.horizon
        size = layout.stroke * rng.uniform(0.8, 1.3)
        outline = (
            star(x, y, size * 0.6, size * 2.4, 4) if i % 5 == 0 else ellipse(x, y, size * 0.8, size * 0.8, count=10)
        )
        canvas.fill(outline, palette.STAR)


def _draw_veil(canvas: Canvas, layout: Layout) -> None:
    """Long bands of grey cloud."""
    rng = np.random.default_rng((layout.variant, 5))
    for row in range(5):
        y = layout.horizon * (0.1 + 0.17 * row)
        colour = mix((140, 150, 160), (196, 203, 209), 0.2 * row)
        for _ in range(_count(layout, 2)):
            x, long = rng.uniform(0, layout.width), layout.unit * rng.uniform(0.5, 1.1)
            canvas.fill(ellipse(x, y, long, layout.unit * 0.07, count=40), colour)


def _draw_sheets(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """The sky of the paper-cut style: sheets of paper, one before the other."""
    top, middle, low = palette.SKY[tone_of(scene)]
    x = np.linspace(-9, layout.width + 9, 60)
    for level, colour in ((0.0, top), (0.3, middle), (0.56, mix(middle, low, 0.5)), (0.8, low)):
        wave = np.sin(x / layout.unit * 2.4 + layout.variant % 41 + 9 * level)
        edge = np.stack([x, layout.horizon * (level + 0.035 * wave - (0 if level else 0.1))], axis=1)
        canvas.sheet(edge, colour)


def _draw_light(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    x, y = layout.light(scene.sky, scene.light)
    radius, colour = layout.light_radius, palette.LIGHT[tone_of(scene)][scene.light]
    if scene.light == "moon":
        outer = ellipse(x, y, radius, radius, start=58.7, end=301.3, count=60)
        inner = ellipse(x + 0.42 * radius, y, 0.86 * radius, 0.86 * radius, start=83.3, end=276.7, count=60)
        canvas.layer([Piece(np.concatenate([outer, inner[::-1]]), colour)], glow=colour)
        return
    if scene.style == "flat":
        top, middle, _ = palette.SKY[scene.sky]
        halo = mix(mix(top, middle, 0.5 if scene.sky == "day" else 0.8), (255, 240, 200), 0.35)
        canvas.fill(ellipse(x, y, 1.35 * radius, 1.35 * radius, count=72), halo)
    canvas.layer([Piece(ellipse(x, y, radius, radius, count=72), colour)], glow=colour)


def _mountains(colour: RGB, scene: Scene, layout: Layout) -> list[Piece]:
    rng = np.random.default_rng((layout.variant, 6))
    base, pieces = layout.horizon + 0.03 * layout.height, []
    step = layout.unit * 0.78
    cap = palette.cap_of(tone_of(scene))
    for x in np.arange(-0.2 * step, layout.width + step, step):
        peak, high = x + step * rng.uniform(-0.25, 0.25), layout.unit * rng.uniform(0.34, 0.62)
        wide, tone = high * rng.uniform(1.0, 1.3), mix(colour, WHITE, rng.uniform(0, 0.1))
        foot, top = base, layout.horizon - high
        pieces.append(Piece(points((peak - wide, foot), (peak, top), (peak + wide, foot)), tone))
        s, d = 0.28, high * 0.28
        zigzag = points((peak + wide * s, top + d), (peak + wide * s * 0.4, top + d * 0.8), (peak, top + d * 1.2),
                        (peak - wide * s * 0.45, top + d * 0.8), (peak - wide * s, top + d))  # fmt: skip
        scale = (foot - top) / high  # the slopes end below the horizon, so the snow must follow them
        zigzag[:, 0] = peak + (zigzag[:, 0] - peak) / scale
        pieces.append(Piece(np.concatenate([points((peak, top)), zigzag]), cap))
    return pieces


def _hills(colour: RGB, scene: Scene, layout: Layout) -> list[Piece]:
    rng = np.random.default_rng((layout.variant, 7))
    x = np.linspace(-9, layout.width + 9, 90)
    pieces = []
    for level, tone in ((0.3, mix(colour, WHITE, 0.14)), (0.16, colour)):
        curve = np.sin(x / layout.unit * rng.uniform(1.8, 2.6) + rng.uniform(0, 6)) * 0.5 + 0.7
        edge = np.stack([x, layout.horizon - layout.unit * level * curve], axis=1)
        low = layout.horizon + 0.03 * layout.height
        pieces.append(Piece(np.concatenate([edge, points((layout.width + 9, low), (-9, low))]), tone))
    return pieces


def _city(colour: RGB, scene: Scene, layout: Layout) -> list[Piece]:
    rng = np.random.default_rng((layout.variant, 8))
    base, pieces, x = layout.horizon + 0.03 * layout.height, [], -0.05 * layout.unit
    lit = palette.window_of(tone_of(scene))
    while x < layout.width:
        wide, high = layout.unit * rng.uniform(0.16, 0.28), layout.unit * rng.uniform(0.24, 0.7)
        top = layout.horizon - high
        pieces.append(Piece(rectangle(x, top, x + wide, base), mix(colour, WHITE, rng.uniform(0, 0.12))))
        pane = layout.unit * 0.05
        for row in range(int(high / pane / 3)):
            for column in range(int(wide / pane / 2.2)):
                if rng.random() < 0.4:
                    left, upper = x + pane * (0.8 + 2 * column), top + pane * (1 + 2.6 * row)
                    pieces.append(Piece(rectangle(left, upper, left + pane, upper + 1.3 * pane), lit))
        x += wide * rng.uniform(0.95, 1.25)
    return pieces


def _clouds(colour: RGB, scene: Scene, layout: Layout) -> list[Piece]:
    rng = np.random.default_rng((layout.variant, 9))
    pieces, count = [], max(3, round(layout.width / layout.unit))
    for i in range(count):
        size = layout.unit * rng.uniform(0.24, 0.34)
        x = layout.width * (i + rng.uniform(0.25, 0.75)) / count
        y = layout.horizon * rng.uniform(0.42, 0.62)
        puffs = ((-0.62, 0.0, 0.36), (0.62, 0.0, 0.36), (-0.2, -0.16, 0.5), (0.28, -0.08, 0.42))
        outline = union(0, -0.02, puffs) * size + (x, y)
        outline[:, 1] = np.minimum(outline[:, 1], y + 0.14 * size)
        pieces.append(Piece(outline, colour))
    return pieces


DRAWERS: Final[Mapping[Backdrop, Callable[[RGB, Scene, Layout], list[Piece]]]] = {
    "mountains": _mountains,
    "hills": _hills,
    "city": _city,
    "clouds": _clouds,
}


def _count(layout: Layout, usual: int) -> int:
    """How many in an image of this shape, where a square one has `usual`."""
    return max(1, math.ceil(usual * layout.width / (3.2 * layout.unit)))
