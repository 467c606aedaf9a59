"""Captions: true of their scene, visible in its image, and some of them held out."""

import re

import numpy as np
import pytest

from starters.world.captions import caption, full_caption, sample_pair
from starters.world.checker import judge
from starters.world.render import render
from starters.world.scene import COLOURS, KINDS, sample_scene
from starters.world.split import scene_split, text_split
from starters.world.wording import COLOUR_PHRASES, NOUNS
from tests.unit.starter_world.scenes import SIZES


def test_what_a_caption_states_is_true_of_its_scene() -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        scene = sample_scene(rng)
        assert caption(scene, rng).claims.true_of(scene)
        assert full_caption(scene, rng).claims.true_of(scene)


@pytest.mark.slow
def test_what_a_caption_states_is_seen_in_its_image() -> None:
    rng = np.random.default_rng(2)
    obeyed = []
    for i in range(68):
        scene, sampled = sample_pair(rng, "held-out")
        obeyed.append(judge(render(scene, *SIZES[i % len(SIZES)]), sampled.claims).obeys)
    assert np.mean(obeyed) >= 0.98


def test_a_caption_names_no_object_and_no_colour_but_the_claimed_ones() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        sampled = caption(sample_scene(rng), rng)
        text = re.sub(r"blue sky|green field|snow-white|grey|gray|starry", "", sampled.text.lower())
        claimed = {claim.kind for claim in sampled.claims.things}
        for kind in KINDS:
            if kind in claimed:
                assert any(noun in text for noun in NOUNS[kind])
            elif kind not in {"house", "star", "heart"}:  # parts of other words
                assert not re.search(rf"\b{kind}\b", text), sampled.text
        colours = {claim.colour for claim in sampled.claims.things}
        for colour in COLOURS:
            assert colour not in colours or any(word in sampled.text.lower() for word in COLOUR_PHRASES[colour])
            assert colour in colours or not re.search(rf"\b{colour}\b", text), sampled.text


def test_no_wording_and_no_combination_is_both_trained_on_and_held_out() -> None:
    rng = np.random.default_rng(6)
    for split in ("train", "held-out"):
        for _ in range(50):
            scene, sampled = sample_pair(rng, split)
            assert scene_split(scene) == text_split(sampled.text) == split
