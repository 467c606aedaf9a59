"""Rendered images: at every size, and of every object, colour and style, the checker detects what was drawn."""

from dataclasses import replace

import numpy as np
import pytest

from starters.world.checker import judge, read
from starters.world.claims import claims_of
from starters.world.render import render
from starters.world.scene import (
    COLOURS,
    GROUNDS,
    KINDS,
    SKIES,
    SKY_LIGHTS,
    STYLES,
    Colour,
    Kind,
    Scene,
    Style,
    with_style,
)
from tests.unit.starter_world.scenes import PLAIN, SIZES, with_thing


def pixels(scene: Scene, size: tuple[int, int] = (128, 128)) -> np.ndarray:
    return np.asarray(render(scene, *size)).astype(int)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_shape_is_drawn_at_its_exact_size_and_shows_the_scene(size: tuple[int, int]) -> None:
    image = render(PLAIN, *size)
    assert image.size == size
    assert image.mode == "RGB"
    assert judge(image, claims_of(PLAIN)).obeys


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_recognised_by_its_outline(kind: Kind) -> None:
    detected = read(render(with_thing(kind=kind, colour="purple"), 256, 256)).places["centre"]
    assert (detected.kind, detected.colour, detected.size) == (kind, "purple", "large")


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("ground", GROUNDS)
def test_every_colour_is_seen_on_every_ground(colour: Colour, ground: str) -> None:
    scene = replace(with_thing(colour=colour, kind="cat", size="small"), ground=ground)  # type: ignore[arg-type]
    assert judge(render(scene, 256, 256), claims_of(scene)).obeys


@pytest.mark.parametrize("style", STYLES)
def test_every_style_looks_unlike_the_others_and_shows_the_scene(style: Style) -> None:
    night = replace(PLAIN, sky="night")
    styled = with_style(night, style)
    assert judge(render(styled, 256, 256), claims_of(styled)).obeys
    others = [with_style(night, other) for other in STYLES if other != style]
    assert all(np.abs(pixels(styled) - pixels(other)).mean() > 0.8 for other in others)


@pytest.mark.parametrize("sky", SKIES)
def test_a_light_is_where_only_sky_is(sky: str) -> None:
    for light in SKY_LIGHTS[sky]:  # type: ignore[index]
        scene = replace(with_thing(kind="lighthouse"), sky=sky, light=light)  # type: ignore[arg-type]
        assert read(render(scene, 256, 256)).light == light
