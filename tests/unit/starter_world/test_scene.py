"""The rules of the world."""

from dataclasses import replace

import numpy as np
import pytest

from starters.world.scene import (
    BACKDROPS,
    COLOURS,
    GROUNDS,
    KINDS,
    LIGHTS,
    SKIES,
    SKY_LIGHTS,
    STYLES,
    Thing,
    sample_scene,
    with_sky,
    with_style,
)
from tests.unit.starter_world.scenes import PLAIN


def test_the_same_seed_gives_the_same_scenes() -> None:
    first, second, other = (np.random.default_rng(seed) for seed in (3, 3, 4))
    scenes = [sample_scene(first) for _ in range(20)]
    assert scenes == [sample_scene(second) for _ in range(20)]
    assert scenes != [sample_scene(other) for _ in range(20)]


def test_every_part_of_the_world_is_drawn_by_lot() -> None:
    rng = np.random.default_rng(0)
    scenes = [sample_scene(rng) for _ in range(2000)]
    for part, values in {
        "sky": SKIES,
        "ground": GROUNDS,
        "backdrop": BACKDROPS,
        "light": LIGHTS,
        "style": STYLES,
    }.items():
        assert {getattr(scene, part) for scene in scenes} == set(values)
    pairs = {(thing.kind, thing.colour) for scene in scenes for thing in scene.things}
    assert len(pairs) == len(KINDS) * len(COLOURS)


@pytest.mark.parametrize(
    "changes",
    [
        {"things": ()},
        {"things": (Thing("cat", "red", "small", "left"), Thing("cat", "blue", "small", "right"))},
        {"things": (Thing("cat", "red", "small", "left"), Thing("car", "blue", "small", "left"))},
        {"things": (Thing("cat", "red", "small", "right"), Thing("car", "blue", "small", "left"))},
        {"sky": "night", "light": "sun"},
        {"style": "night-neon"},
    ],
)
def test_a_scene_that_can_not_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is for the reader
        replace(PLAIN, **changes)  # type: ignore[arg-type]


def test_another_sky_takes_the_light_that_it_can_not_have() -> None:
    sunny = replace(PLAIN, light="sun")
    assert with_sky(sunny, "sunset").light == "sun"
    assert with_sky(sunny, "night").light == "none"
    neon = with_style(sunny, "night-neon")
    assert (neon.sky, neon.light) == ("night", "none")
    assert with_sky(neon, "day").style == "flat"
    assert all(with_sky(sunny, sky).light in SKY_LIGHTS[sky] for sky in SKIES)
