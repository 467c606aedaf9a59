"""Pictures: the same every time, at every shape, of everything there is."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from starters.world.checker import judge, read
from starters.world.claims import claims_of
from starters.world.contact_sheet import edits_sheet, scenes_sheet
from starters.world.render import render
from starters.world.scene import (
    BACKDROPS,
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


def test_a_scene_is_the_same_picture_every_time() -> None:
    assert render(PLAIN, 200, 120).tobytes() == render(PLAIN, 200, 120).tobytes()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_shape_is_drawn_at_its_exact_size_and_shows_the_scene(size: tuple[int, int]) -> None:
    picture = render(PLAIN, *size)
    assert picture.size == size
    assert picture.mode == "RGB"
    assert judge(picture, claims_of(PLAIN)).obeys


def test_a_larger_picture_shows_the_same_scene() -> None:
    large = render(PLAIN, 768, 768).resize((192, 192), Image.Resampling.BOX)
    difference = np.abs(np.asarray(large).astype(int) - pixels(PLAIN, (192, 192)))
    assert difference.mean() < 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_recognised_by_its_outline(kind: Kind) -> None:
    seen = read(render(with_thing(kind=kind, colour="purple"), 256, 256)).places["centre"]
    assert (seen.kind, seen.colour, seen.size) == (kind, "purple", "large")


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


def test_every_landscape_differs_from_every_other() -> None:
    scenes = [replace(PLAIN, sky=sky) for sky in SKIES]
    scenes += [replace(PLAIN, ground=ground) for ground in GROUNDS if ground != PLAIN.ground]
    scenes += [replace(PLAIN, backdrop=backdrop) for backdrop in BACKDROPS if backdrop != "none"]
    scenes += [replace(PLAIN, light="sun"), replace(PLAIN, sky="night", light="moon")]
    pictures = [pixels(scene) for scene in scenes]
    assert all(np.abs(a - b).mean() > 0.5 for a, b in combinations(pictures, 2))


@pytest.mark.parametrize("sky", SKIES)
def test_a_light_is_where_only_sky_is(sky: str) -> None:
    for light in SKY_LIGHTS[sky]:  # type: ignore[index]
        scene = replace(with_thing(kind="lighthouse"), sky=sky, light=light)  # type: ignore[arg-type]
        assert read(render(scene, 256, 256)).light == light


def test_contact_sheets_are_drawn() -> None:
    assert min(scenes_sheet(1, count=2).size) > 300
    assert min(edits_sheet(1, chains=1).size) > 300
