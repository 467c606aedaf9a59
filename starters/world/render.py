"""The image of a scene, at any size and shape. The same scene and size give the same bytes."""

import numpy as np
from PIL import Image

from starters.world import palette
from starters.world.canvas import Canvas, Piece
from starters.world.geometry import Points, ellipse, points
from starters.world.landscape import draw_backdrop, draw_ground, draw_sky
from starters.world.layout import Box, Layout, layout_of
from starters.world.palette import RGB, mix, tone_of
from starters.world.scene import AFLOAT, Scene, Thing
from starters.world.shapes import paint, parts_of


def render(scene: Scene, width: int, height: int) -> Image.Image:
    """An RGB image of width x height pixels."""
    layout = layout_of(scene, width, height)
    canvas = Canvas(layout, scene.style, palette.SKY[tone_of(scene)])
    draw_sky(canvas, scene, layout)
    draw_backdrop(canvas, scene, layout)
    draw_ground(canvas, scene, layout)
    for thing in scene.things:
        _draw_thing(canvas, scene, thing, layout)
    return canvas.finished()


def _draw_thing(canvas: Canvas, scene: Scene, thing: Thing, layout: Layout) -> None:
    box = layout.box(thing.size, thing.place)
    ground = palette.GROUND[tone_of(scene)][scene.ground]
    if scene.ground == "sea" and thing.kind not in AFLOAT:
        _draw_islet(canvas, scene, box)
    elif thing.kind != "boat" or scene.ground != "sea":
        wide = 0.3 if thing.kind in {"rocket", "flower", "tree"} else 0.42
        canvas.fill(ellipse(box.x, box.y, wide * box.unit, 0.045 * box.unit), mix(ground, (0, 0, 0), 0.2))
    colours = paint(thing.colour)
    pieces = [Piece(placed(part.outline, box), colours[part.role]) for part in parts_of(thing.kind)]
    canvas.layer(pieces, glow=_glow(thing), rim=_rim(scene, thing, ground))
    if thing.kind == "boat" and scene.ground == "sea":
        _draw_bow_wave(canvas, box, ground)


def _glow(thing: Thing) -> RGB:
    return mix(palette.OBJECT[thing.colour], (255, 255, 255), 0.3 if thing.colour in {"black", "brown"} else 0.05)


def _rim(scene: Scene, thing: Thing, ground: RGB) -> RGB | None:
    """A line around an object that would be hard to see: white on snow, black at night."""
    if scene.style == "outlined":
        return None
    sky = palette.SKY[tone_of(scene)]
    backdrop = palette.BACKDROP[tone_of(scene)].get(scene.backdrop, sky[2])
    if not palette.blends_in(thing.colour, ground, sky[1], sky[2], backdrop):
        return None
    light = thing.colour in {"white", "yellow", "orange", "pink"}
    return palette.SLATE if light else (214, 220, 230)


def _draw_islet(canvas: Canvas, scene: Scene, box: Box) -> None:
    """Sand for what can't swim."""
    sand = palette.GROUND[tone_of(scene)]["desert"]
    foam = mix(palette.GROUND[tone_of(scene)]["sea"], (255, 255, 255), 0.4)
    canvas.fill(ellipse(box.x, box.y + 0.015 * box.unit, 0.56 * box.unit, 0.085 * box.unit), foam)
    canvas.layer([Piece(ellipse(box.x, box.y, 0.5 * box.unit, 0.07 * box.unit), sand)])


def _draw_bow_wave(canvas: Canvas, box: Box, sea: RGB) -> None:
    """Water before the hull, so that the boat lies in it."""
    x = np.linspace(-0.56, 0.56, 50)
    crest = np.stack([box.x + box.unit * x, box.y - box.unit * (0.03 + 0.018 * np.cos(x * 28))], axis=1)
    water = np.concatenate(
        [crest, points((crest[-1, 0], box.y + 0.03 * box.unit), (crest[0, 0], box.y + 0.03 * box.unit))]
    )
    canvas.fill(water, sea)
    canvas.trace(crest, mix(sea, (255, 255, 255), 0.45), max(0.6, 0.018 * box.unit))


def placed(outline: Points, box: Box) -> Points:
    """An object's outline in pixels, where it stands."""
    return np.stack([box.x + box.unit * outline[:, 0], box.y - box.unit * outline[:, 1]], axis=1)
