"""Prompt adherence: how often an image shows what its prompt states, for any generator.

What a caption leaves open is not judged. An object's colour counts wherever the object is; its place counts if
something of its colour stands there. Kinds are not judged: a silhouette says more about how well an object is drawn.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from PIL import Image

from starters.world.captions import Caption, sample_pair
from starters.world.checker import Reading, judge_reading, read
from starters.world.claims import Claims, claims_of
from starters.world.edits import Edit, sample_chain
from starters.world.render import render
from starters.world.scene import Scene

SEED: Final = 77  # not the seed of training, although held-out prompts differ anyway
SIZES: Final = ((1024, 1024), (1536, 1024), (1024, 1536), (1024, 1024), (1792, 1024), (1280, 1024), (1024, 1792))


@dataclass(frozen=True, slots=True)
class Case:
    """One image to draw. `scene` is what a perfect image shows; `references` are scenes too."""

    prompt: str
    scene: Scene
    size: tuple[int, int]
    references: tuple[Scene, ...] = ()

    def images(self) -> list[Image.Image]:
        return [render(scene, *self.size) for scene in self.references]


@dataclass(frozen=True, slots=True)
class Share:
    """`right` out of `of`."""

    right: int
    of: int

    @property
    def value(self) -> float:
        """From 0 to 1; 1 if there was nothing to judge."""
        return self.right / self.of if self.of else 1.0


Draw = Callable[[Case], Image.Image]
OnImage = Callable[[Case, Image.Image], None]
Shares = Mapping[str, Share]


def held_out_captions(count: int, seed: int = SEED) -> list[tuple[Case, Caption]]:
    """Captions of held-out scenes in held-out wordings."""
    rng = np.random.default_rng((seed, 1))
    pairs = [sample_pair(rng, "held-out") for _ in range(count)]
    return [(Case(caption.text, scene, SIZES[i % len(SIZES)]), caption) for i, (scene, caption) in enumerate(pairs)]


def held_out_edits(count: int, seed: int = SEED) -> list[tuple[Case, Edit]]:
    """Edits whose scene or wording is held out. Some use a second image."""
    rng = np.random.default_rng((seed, 2))
    edits = [sample_chain(rng, 1, "held-out")[0] for _ in range(count)]
    return [
        (Case(edit.instruction, edit.after, SIZES[i % len(SIZES)], _references(edit)), edit)
        for i, edit in enumerate(edits)
    ]


def adherence(draw: Draw, cases: Sequence[tuple[Case, Caption]], on_image: OnImage) -> Shares:
    """Shares by attribute (sky, ground, colour, place), and of the captions of which every attribute is right."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for case, caption in cases:
        image = draw(case)
        on_image(case, image)
        judged = dict(_attributes(read(image), caption.claims))
        for name, holds in judged.items():
            outcomes[name] += holds
        outcomes["all of it"].append(all(all(holds) for holds in judged.values()))
    return {name: Share(sum(holds), len(holds)) for name, holds in outcomes.items()}


def edit_adherence(draw: Draw, cases: Sequence[tuple[Case, Edit]], on_image: OnImage) -> Shares:
    """The share of edits after which the image shows the expected scene, unchanged parts included."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for case, edit in cases:
        image = draw(case)
        on_image(case, image)
        obeyed = edit_holds(read(image), edit)
        outcomes["edits with two pictures" if edit.reference else "edits with one picture"].append(obeyed)
        outcomes["edits"].append(obeyed)
    return {name: Share(sum(holds), len(holds)) for name, holds in outcomes.items()}


def edit_holds(reading: Reading, edit: Edit) -> bool:
    """Sky, ground, every object's colour and place, no object elsewhere; backdrop and light where they changed."""
    verdict = judge_reading(reading, claims_of(edit.after))
    backdrop = edit.after.backdrop == edit.before.backdrop or verdict.backdrop is True
    light = edit.after.light == edit.before.light or verdict.light is True
    return verdict.obeys and backdrop and light


def _attributes(reading: Reading, claims: Claims) -> Iterator[tuple[str, list[bool]]]:
    verdict = judge_reading(reading, claims)
    if verdict.sky is not None:
        yield "sky", [verdict.sky]
    if verdict.ground is not None:
        yield "ground", [verdict.ground]
    coloured = tuple(replace(thing, place=None) for thing in claims.things if thing.colour)
    yield "object colour", list(judge_reading(reading, Claims(things=coloured)).colours)
    placed = tuple(thing for thing in claims.things if thing.place)
    yield "place", list(judge_reading(reading, Claims(things=placed)).colours)


def _references(edit: Edit) -> tuple[Scene, ...]:
    return (edit.before,) if edit.reference is None else (edit.before, edit.reference)
