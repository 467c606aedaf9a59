"""The measuring, with generators whose adherence is known: the renderer, and ones that get something wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from starters.measuring.adherence import (
    Case,
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

COUNT = 40
SIDE_PX = 320


@pytest.fixture(scope="module")
def captions() -> list[tuple[Case, Caption]]:
    return [(replace(case, size=(SIDE_PX, SIDE_PX)), caption) for case, caption in held_out_captions(COUNT)]


@pytest.fixture(scope="module")
def edits() -> list[tuple[Case, Edit]]:
    return [(replace(case, size=(SIDE_PX, SIDE_PX)), edit) for case, edit in held_out_edits(COUNT)]


def generator(change: Callable[[Scene], Scene] = lambda scene: scene) -> Callable[[Case], Image.Image]:
    return lambda case: render(change(case.scene), *case.size)


def no_sheet(_: Case, __: Image.Image) -> None:
    """No sheet."""


def test_the_renderer_adheres(captions: list[tuple[Case, Caption]]) -> None:
    shares = adherence(generator(), captions, no_sheet)
    assert set(shares) == {"sky", "ground", "object colour", "place", "all of it"}
    assert {name: share.value >= 0.95 for name, share in shares.items()} == dict.fromkeys(shares, True)


def test_a_wrong_sky_is_only_a_wrong_sky(captions: list[tuple[Case, Caption]]) -> None:
    def other_sky(scene: Scene) -> Scene:
        return with_sky(scene, SKIES[(SKIES.index(scene.sky) + 1) % len(SKIES)])

    shares = adherence(generator(other_sky), captions, no_sheet)
    assert shares["sky"].value < 0.1
    assert shares["place"].value > 0.9


def test_wrong_colours_are_counted(captions: list[tuple[Case, Caption]]) -> None:
    def other_colours(scene: Scene) -> Scene:
        things = [
            replace(thing, colour=COLOURS[(COLOURS.index(thing.colour) + 5) % len(COLOURS)]) for thing in scene.things
        ]
        return with_things(scene, tuple(things))

    assert adherence(generator(other_colours), captions, no_sheet)["object colour"].value < 0.2


def test_an_edit_that_changes_nothing_is_not_obeyed(edits: list[tuple[Case, Edit]]) -> None:
    assert edit_adherence(generator(), edits, no_sheet)["edits"].value >= 0.95
    untouched = [
        (case, edit)
        for case, edit in edits
        if edit.change in {"recolour", "add", "remove", "move", "sky", "ground", "light", "backdrop"}
    ]
    unchanged = edit_adherence(lambda case: render(case.references[0], *case.size), untouched, no_sheet)
    assert unchanged["edits"].of > 10
    assert unchanged["edits"].value < 0.1


def test_a_model_card_gets_the_figures(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(CARD)
    write_into_card(card, Measured({"sky": Share(7, 9)}, 29.04))
    assert "| quality | held-out captions and edits: sky 7 of 9; autoencoder 29.0 dB |\n" in card.read_text()
    assert len(card.read_text().splitlines()) == len(CARD.splitlines())
