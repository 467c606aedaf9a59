"""Edits: the change that is asked for, and no other."""

import numpy as np
import pytest

from starters.world.checker import judge
from starters.world.claims import claims_of
from starters.world.edit_wording import Change
from starters.world.edits import CHANGES, Edit, sample_chain, sample_edit
from starters.world.render import render
from starters.world.scene import sample_scene
from starters.world.split import scene_split, text_split

# What each change may touch. A sky may take the light with it, and a style the sky.
TOUCHED: dict[str, set[str]] = {
    "sky": {"sky", "light", "style"},
    "borrow sky": {"sky", "light", "style"},
    "ground": {"ground"},
    "backdrop": {"backdrop"},
    "clear backdrop": {"backdrop"},
    "light": {"light"},
    "clear light": {"light"},
    "style": {"style", "sky", "light"},
    "borrow style": {"style", "sky", "light"},
}
PARTS = ("sky", "ground", "backdrop", "light", "style", "things", "variant")


def edits_of(change: Change, count: int) -> list[Edit]:
    rng = np.random.default_rng(CHANGES.index(change))
    edits: list[Edit] = []
    while len(edits) < count:
        edit = sample_edit(rng, sample_scene(rng), change)
        if edit is not None:
            edits.append(edit)
    return edits


def unchanged_things(edit: Edit) -> int:
    return len(set(edit.before.things) & set(edit.after.things))


@pytest.mark.parametrize("change", CHANGES)
def test_an_edit_changes_what_it_says_and_nothing_else(change: Change) -> None:
    allowed = TOUCHED.get(change, {"things"})
    for edit in edits_of(change, 30):
        changed = {part for part in PARTS if getattr(edit.before, part) != getattr(edit.after, part)}
        assert changed
        assert changed <= allowed
        if allowed == {"things"}:
            lost = {"add": 0, "insert": 0, "swap": 2}.get(change, 1)
            assert unchanged_things(edit) == len(edit.before.things) - lost


@pytest.mark.parametrize("change", CHANGES)
def test_the_image_after_an_edit_shows_it_and_the_one_before_does_not(change: Change) -> None:
    for edit in edits_of(change, 3):
        after = claims_of(edit.after)
        assert judge(render(edit.after, 256, 256), after).obeys
        if change in {"recolour", "add", "remove", "move", "sky", "ground", "insert", "borrow sky"}:
            assert not judge(render(edit.before, 256, 256), after).obeys


def test_training_never_meets_what_is_held_out() -> None:
    rng = np.random.default_rng(3)
    for edit in [edit for _ in range(30) for edit in sample_chain(rng, 3)]:
        assert scene_split(edit.after) == text_split(edit.instruction) == "train"
    for edit in sample_chain(rng, 3, "held-out"):
        assert "held-out" in {scene_split(edit.after), text_split(edit.instruction)}
