"""Captions: true, various, the same for the same seed, and some of them kept out of training."""

import re

import numpy as np

from starters.world.captions import caption, full_caption, sample_pair
from starters.world.checker import judge
from starters.world.render import render
from starters.world.scene import COLOURS, KINDS, sample_scene
from starters.world.split import scene_split, text_split
from starters.world.wording import COLOURS_SAID, NOUNS
from tests.unit.starter_world.scenes import SIZES


def test_what_a_caption_states_is_true_of_its_scene() -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        scene = sample_scene(rng)
        assert caption(scene, rng).claims.true_of(scene)
        assert full_caption(scene, rng).claims.true_of(scene)


def test_what_a_caption_states_is_seen_in_its_picture() -> None:
    rng = np.random.default_rng(2)
    obeyed = []
    for i in range(68):
        scene, said = sample_pair(rng, "held-out")
        obeyed.append(judge(render(scene, *SIZES[i % len(SIZES)]), said.claims).obeys)
    assert np.mean(obeyed) >= 0.98


def test_a_caption_names_no_object_and_no_colour_but_the_claimed_ones() -> None:
    """The words themselves: claims that are true help nobody if the text says something else."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        said = caption(sample_scene(rng), rng)
        text = re.sub(r"blue sky|green field|snow-white|grey|gray|starry", "", said.text.lower())
        claimed = {claim.kind for claim in said.claims.things}
        for kind in KINDS:
            if kind in claimed:
                assert any(noun in text for noun in NOUNS[kind])
            elif kind not in {"house", "star", "heart"}:  # parts of other words
                assert not re.search(rf"\b{kind}\b", text), said.text
        colours = {claim.colour for claim in said.claims.things}
        for colour in COLOURS:
            assert colour not in colours or any(word in said.text.lower() for word in COLOURS_SAID[colour])
            assert colour in colours or not re.search(rf"\b{colour}\b", text), said.text


def test_a_scene_has_many_wordings() -> None:
    rng = np.random.default_rng(4)
    scene = sample_scene(rng)
    texts = {caption(scene, rng).text for _ in range(200)}
    assert len(texts) > 150
    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[0] <= 12
    assert lengths[-1] >= 20


def test_what_is_left_out_is_what_one_expects() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        scene, said = sample_pair(rng, "train")
        assert said.claims.sky is not None or scene.sky == "day"
        assert said.claims.backdrop is not None or scene.backdrop == "none"
        assert said.claims.light is not None or scene.light == "none"
        assert said.claims.style is not None or scene.style == "flat"
        assert len(said.claims.things) == len(scene.things)


def test_the_same_seed_gives_the_same_captions() -> None:
    first, second = np.random.default_rng(5), np.random.default_rng(5)
    assert [sample_pair(first, "train") for _ in range(10)] == [sample_pair(second, "train") for _ in range(10)]


def test_no_wording_and_no_combination_is_both_trained_on_and_held_out() -> None:
    rng = np.random.default_rng(6)
    for split in ("train", "held-out"):
        for _ in range(50):
            scene, said = sample_pair(rng, split)
            assert scene_split(scene) == text_split(said.text) == split


def test_case_and_punctuation_make_no_new_wording_and_short_ones_are_always_trained_on() -> None:
    texts = [f"a red boat at sea number {i}" for i in range(200)]
    held = [text for text in texts if text_split(text) == "held-out"]
    assert 5 <= len(held) <= 40
    assert all(text_split(text.upper() + ".") == "held-out" for text in held)
    assert {text_split(f"a {colour} boat") for colour in COLOURS} == {"train"}
