"""The checker, on images whose scenes are known: right about what is there, and not fooled by what isn't."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from starters.world.checker import Reading, judge, judge_reading, read
from starters.world.claims import Claims, ThingClaim, claims_of
from starters.world.render import render
from starters.world.scene import COLOURS, GROUNDS, SKIES, Scene, pick
from tests.unit.starter_world.scenes import PLAIN, random_scenes

pytestmark = pytest.mark.slow

COUNT = 204


@pytest.fixture(scope="module")
def readings() -> list[tuple[Scene, Reading]]:
    return [(scene, read(render(scene, *size))) for scene, size in random_scenes(COUNT, seed=11)]


def test_it_is_right_about_rendered_scenes(readings: list[tuple[Scene, Reading]]) -> None:
    obeyed = [judge_reading(reading, claims_of(scene)).obeys for scene, reading in readings]
    assert np.mean(obeyed) >= 0.98


@pytest.mark.parametrize("part", ["sky", "ground", "backdrop", "light"])
def test_it_is_right_about_the_landscape(part: str, readings: list[tuple[Scene, Reading]]) -> None:
    assert np.mean([getattr(reading, part) == getattr(scene, part) for scene, reading in readings]) >= 0.98


def test_it_knows_kinds_and_sizes(readings: list[tuple[Scene, Reading]]) -> None:
    things = [(thing, reading.places[thing.place]) for scene, reading in readings for thing in scene.things]
    assert np.mean([detected.kind == thing.kind for thing, detected in things]) >= 0.95
    assert np.mean([detected.size == thing.size for thing, detected in things]) >= 0.95


def altered(scene: Scene, rng: np.random.Generator) -> Iterator[tuple[str, Claims]]:
    """Claims that are untrue of the scene in one point each."""
    true = replace(claims_of(scene), empty=())
    thing = true.things[0]
    colours = {other.colour for other in scene.things}
    yield "sky", replace(true, sky=pick(rng, tuple(s for s in SKIES if s != scene.sky)))
    yield "ground", replace(true, ground=pick(rng, tuple(g for g in GROUNDS if g != scene.ground)))
    wrong = replace(thing, colour=pick(rng, tuple(c for c in COLOURS if c not in colours)))
    yield "colour", replace(true, things=(wrong, *true.things[1:]))
    if scene.free_places:
        moved = replace(thing, place=pick(rng, scene.free_places))
        yield "place", replace(true, things=(moved, *true.things[1:]))
    yield "empty", replace(true, empty=(scene.things[0].place,))


def test_it_sees_what_is_not_so(readings: list[tuple[Scene, Reading]]) -> None:
    rng = np.random.default_rng(2)
    caught: dict[str, list[bool]] = {}
    for scene, reading in readings:
        for point, claims in altered(scene, rng):
            caught.setdefault(point, []).append(not judge_reading(reading, claims).obeys)
    assert {point: np.mean(edits) >= 0.95 for point, edits in caught.items()} == dict.fromkeys(caught, True)
    assert set(caught) == {"sky", "ground", "colour", "place", "empty"}


def test_it_bears_a_soft_and_noisy_image() -> None:
    """Generated images are not as clean as rendered ones."""
    rng = np.random.default_rng(3)
    obeyed = []
    for scene, size in random_scenes(51, seed=12):
        soft = np.asarray(render(scene, *size).filter(ImageFilter.GaussianBlur(1.2))).astype(float)
        noisy = np.clip(soft + rng.normal(0, 8, soft.shape), 0, 255).astype(np.uint8)
        obeyed.append(judge(Image.fromarray(noisy), replace(claims_of(scene), empty=())).obeys)
    assert np.mean(obeyed) >= 0.94


def test_an_image_of_something_else_keeps_no_claim() -> None:
    noise = np.random.default_rng(4).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    for image in (Image.fromarray(noise), Image.new("RGB", (200, 200), (255, 0, 255)), Image.new("RGB", (200, 200))):
        assert not judge(image, claims_of(PLAIN)).obeys


def test_what_is_not_claimed_is_not_judged() -> None:
    verdict = judge(render(PLAIN, 256, 256), Claims(things=(ThingClaim("boat", "red"),)))
    assert (verdict.sky, verdict.ground, verdict.colours, verdict.kinds) == (None, None, (True,), (True,))
