"""How often a picture shows what was asked, for anything that draws.

What a caption leaves open is not judged. An object's colour counts wherever the object is; its place counts if
something of its colour stands there. Kinds are left out: a silhouette judges the drawing more than the obedience.
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

SEED: Final = 77  # another one than training's, though what is held out differs already
SIZES: Final = ((1024, 1024), (1536, 1024), (1024, 1536), (1024, 1024), (1792, 1024), (1280, 1024), (1024, 1792))


@dataclass(frozen=True, slots=True)
class Ask:
    """One picture to draw. `scene` is what a perfect picture of it shows; `references` are scenes too."""

    prompt: str
    scene: Scene
    size: tuple[int, int]
    references: tuple[Scene, ...] = ()

    def pictures(self) -> list[Image.Image]:
        """The references as they are given."""
        return [render(scene, *self.size) for scene in self.references]


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many."""

    right: int
    of: int

    @property
    def value(self) -> float:
        """From 0 to 1; nothing asked is nothing wrong."""
        return self.right / self.of if self.of else 1.0


Draw = Callable[[Ask], Image.Image]
Show = Callable[[Ask, Image.Image], None]
Shares = Mapping[str, Share]


def held_out_captions(count: int, seed: int = SEED) -> list[tuple[Ask, Caption]]:
    """Captions of scenes that training never saw, in wordings that it never saw."""
    rng = np.random.default_rng((seed, 1))
    pairs = [sample_pair(rng, "held-out") for _ in range(count)]
    return [(Ask(said.text, scene, SIZES[i % len(SIZES)]), said) for i, (scene, said) in enumerate(pairs)]


def held_out_edits(count: int, seed: int = SEED) -> list[tuple[Ask, Edit]]:
    """Edits of which the scene or the wording is new. Some speak of a second picture."""
    rng = np.random.default_rng((seed, 2))
    edits = [sample_chain(rng, 1, "held-out")[0] for _ in range(count)]
    return [
        (Ask(edit.instruction, edit.after, SIZES[i % len(SIZES)], _references(edit)), edit)
        for i, edit in enumerate(edits)
    ]


def adherence(draw: Draw, asks: Sequence[tuple[Ask, Caption]], show: Show) -> Shares:
    """By attribute: sky, ground, colour, place; and the captions of which all of these are right."""
    found: dict[str, list[bool]] = defaultdict(list)
    for ask, said in asks:
        picture = draw(ask)
        show(ask, picture)
        judged = dict(_attributes(read(picture), said.claims))
        for name, holds in judged.items():
            found[name] += holds
        found["all of it"].append(all(all(holds) for holds in judged.values()))
    return {name: Share(sum(holds), len(holds)) for name, holds in found.items()}


def edit_adherence(draw: Draw, asks: Sequence[tuple[Ask, Edit]], show: Show) -> Shares:
    """Edits after which the picture shows the scene as it should be now, what was not to change included."""
    found: dict[str, list[bool]] = defaultdict(list)
    for ask, edit in asks:
        picture = draw(ask)
        show(ask, picture)
        obeyed = edit_holds(read(picture), edit)
        found["edits with two pictures" if edit.reference else "edits with one picture"].append(obeyed)
        found["edits"].append(obeyed)
    return {name: Share(sum(holds), len(holds)) for name, holds in found.items()}


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
