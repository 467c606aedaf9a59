"""The measuring itself, with painters whose worth is known: the renderer, and painters that get something wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from starters.measuring.obedience import (
    Ask,
    Share,
    adherence,
    edit_adherence,
    held_out_captions,
    held_out_edits,
)
from starters.measuring.report import Measured, write_into_card
from starters.training.export import CARD
from starters.world.captions import Caption
from starters.world.edits import Edit
from starters.world.render import render
from starters.world.scene import COLOURS, SKIES, Scene, with_sky, with_things
from starters.world.split import scene_split, text_split

COUNT = 40
SIDE_PX = 320


@pytest.fixture(scope="module")
def captions() -> list[tuple[Ask, Caption]]:
    return [(replace(ask, size=(SIDE_PX, SIDE_PX)), said) for ask, said in held_out_captions(COUNT)]


@pytest.fixture(scope="module")
def edits() -> list[tuple[Ask, Edit]]:
    return [(replace(ask, size=(SIDE_PX, SIDE_PX)), edit) for ask, edit in held_out_edits(COUNT)]


def painter(change: Callable[[Scene], Scene] = lambda scene: scene) -> Callable[[Ask], Image.Image]:
    return lambda ask: render(change(ask.scene), *ask.size)


def unshown(_: Ask, __: Image.Image) -> None:
    """No sheet."""


def test_the_renderer_obeys(captions: list[tuple[Ask, Caption]]) -> None:
    shares = adherence(painter(), captions, unshown)
    assert set(shares) == {"sky", "ground", "object colour", "place", "all of it"}
    assert {name: share.value >= 0.95 for name, share in shares.items()} == dict.fromkeys(shares, True)


def test_a_wrong_sky_is_only_a_wrong_sky(captions: list[tuple[Ask, Caption]]) -> None:
    def other_sky(scene: Scene) -> Scene:
        return with_sky(scene, SKIES[(SKIES.index(scene.sky) + 1) % len(SKIES)])

    shares = adherence(painter(other_sky), captions, unshown)
    assert shares["sky"].value < 0.1
    assert shares["place"].value > 0.9


def test_wrong_colours_are_counted(captions: list[tuple[Ask, Caption]]) -> None:
    def other_colours(scene: Scene) -> Scene:
        things = [
            replace(thing, colour=COLOURS[(COLOURS.index(thing.colour) + 5) % len(COLOURS)]) for thing in scene.things
        ]
        return with_things(scene, tuple(things))

    assert adherence(painter(other_colours), captions, unshown)["object colour"].value < 0.2


def test_an_edit_is_what_it_leaves_alone_too(edits: list[tuple[Ask, Edit]]) -> None:
    assert edit_adherence(painter(), edits, unshown)["edits"].value >= 0.95
    untouched = [
        (ask, edit)
        for ask, edit in edits
        if edit.change in {"recolour", "add", "remove", "move", "sky", "ground", "light", "backdrop"}
    ]
    left = edit_adherence(lambda ask: render(ask.references[0], *ask.size), untouched, unshown)
    assert left["edits"].of > 10
    assert left["edits"].value < 0.1


def test_what_is_asked_was_held_out(captions: list[tuple[Ask, Caption]]) -> None:
    assert all(text_split(ask.prompt) == scene_split(ask.scene) == "held-out" for ask, _ in captions)


def test_a_card_says_what_was_measured(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(CARD)
    write_into_card(card, Measured({"sky": Share(7, 9)}, 29.04))
    assert "| quality | held-out captions and edits: sky 7 of 9; autoencoder 29.0 dB |\n" in card.read_text()
    assert len(card.read_text().splitlines()) == len(CARD.splitlines())
