"""Edits: a scene, an instruction, and the scene after it. What the instruction does not name is unchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from starters.world import wording
from starters.world.captions import thing_phrase
from starters.world.claims import ThingClaim
from starters.world.edit_wording import COMMANDS, EDIT_TEMPLATES, PLAIN_FRAMES, POLITE_FRAMES, Change
from starters.world.scene import (
    BACKDROPS,
    COLOURS,
    GROUNDS,
    LIGHTS,
    MEASURES,
    SKIES,
    SKY_LIGHTS,
    STYLES,
    Place,
    Scene,
    Thing,
    pick,
    sample_scene,
    sample_thing,
    with_sky,
    with_style,
    with_things,
)
from starters.world.split import Split, scene_split, text_split
from starters.world.wording import pick_phrase, with_article


@dataclass(frozen=True, slots=True)
class Edit:
    """One step of a chain. `reference` is the second image, for an instruction that uses two."""

    change: Change
    before: Scene
    instruction: str
    after: Scene
    reference: Scene | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The scene after a change, and the words for the template."""

    after: Scene
    words: Mapping[str, str]
    reference: Scene | None = None


def sample_edit(rng: np.random.Generator, before: Scene, change: Change | None = None) -> Edit | None:
    """An edit of this scene; None if the change is impossible, such as a move when all places are occupied."""
    name: Change = pick(rng, CHANGES, CHANGE_WEIGHTS) if change is None else change
    outcome = EDITORS[name](before, rng)
    if outcome is None or outcome.after == before:
        return None
    template = pick(rng, EDIT_TEMPLATES[name])
    text = template.format_map(outcome.words)
    if "where" in outcome.words:
        text = f"{text}, {outcome.words['where']}"
    instruction = _polite(text, rng)
    return Edit(name, before, instruction, outcome.after, outcome.reference)


def sample_chain(rng: np.random.Generator, turns: int, split: Split = "train") -> list[Edit]:
    """Consecutive edits, each of the scene that the last one produced, all of this split."""
    while True:
        scene = sample_scene(rng)
        if scene_split(scene) == split:
            break
    chain: list[Edit] = []
    while len(chain) < turns:
        edit = sample_edit(rng, chain[-1].after if chain else scene)
        if edit is not None and _belongs(edit, split):
            chain.append(edit)
    return chain


def _belongs(edit: Edit, split: Split) -> bool:
    """Training sees nothing that is held out. A held-out edit has a held-out scene or a held-out wording."""
    if split == "train":
        scenes = (edit.after, *([] if edit.reference is None else [edit.reference]))
        return text_split(edit.instruction) == "train" and all(scene_split(scene) == "train" for scene in scenes)
    return scene_split(edit.after) == "held-out" or text_split(edit.instruction) == "held-out"


def _polite(text: str, rng: np.random.Generator) -> str:
    """Sometimes in a polite frame, sometimes with a capital."""
    frames = POLITE_FRAMES if text.split()[0] in COMMANDS else PLAIN_FRAMES
    text = (pick(rng, frames) if rng.random() < 0.45 else "{}").format(text)
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def _name(thing: Thing, rng: np.random.Generator) -> str:
    """An object by its kind, sometimes with its colour. Kinds do not repeat, so this is unambiguous."""
    colour = thing.colour if rng.random() < 0.25 else None
    return thing_phrase(ThingClaim(thing.kind, colour), rng, article=str)


def _changed(scene: Scene, old: Thing, new: Thing) -> Scene:
    return with_things(scene, tuple(new if thing == old else thing for thing in scene.things))


def _recolour(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    thing = pick(rng, scene.things)
    colour = pick(rng, tuple(c for c in COLOURS if c != thing.colour))
    new = pick_phrase(rng, wording.COLOUR_PHRASES[colour])
    words = {
        "thing": _name(thing, rng),
        "kind": pick_phrase(rng, wording.NOUNS[thing.kind]),
        "new": new,
        "a_new": with_article(new),
    }
    return _Outcome(_changed(scene, thing, replace(thing, colour=colour)), words)


def _resize(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    thing = pick(rng, scene.things)
    size = next(m for m in MEASURES if m != thing.size)
    words = {"thing": _name(thing, rng), "new": pick(rng, wording.SIZE_PHRASES[size])}
    return _Outcome(_changed(scene, thing, replace(thing, size=size)), words)


def _add(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    if not scene.free_places:
        return None
    with_place = rng.random() < 0.8
    place = pick(rng, scene.free_places) if with_place else next(p for p in DEFAULT_PLACES if p in scene.free_places)
    thing = sample_thing(rng, pick(rng, scene.free_kinds), place)
    size = thing.size if rng.random() < (0.3 if thing.size == "large" else 0.8) else None
    phrase = thing_phrase(ThingClaim(thing.kind, thing.colour if rng.random() < 0.9 else None, size), rng)
    if with_place:
        phrase = f"{phrase} {pick_phrase(rng, wording.PLACE_PHRASES[thing.place])}"
    return _Outcome(with_things(scene, (*scene.things, thing)), {"new": phrase})


def _remove(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    if len(scene.things) == 1:
        return None
    thing = pick(rng, scene.things)
    rest = tuple(other for other in scene.things if other != thing)
    return _Outcome(with_things(scene, rest), {"thing": _name(thing, rng)})


def _move(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    if not scene.free_places:
        return None
    thing, place = pick(rng, scene.things), pick(rng, scene.free_places)
    targets = (*wording.PLACE_PHRASES[place], *wording.MOVE_TARGETS[place])
    words = {"thing": _name(thing, rng), "new": pick(rng, targets)}
    return _Outcome(_changed(scene, thing, replace(thing, place=place)), words)


def _swap(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    if len(scene.things) == 1:
        return None
    first, second = (scene.things[int(i)] for i in rng.choice(len(scene.things), size=2, replace=False))
    moved = (replace(first, place=second.place), replace(second, place=first.place))
    rest = tuple(thing for thing in scene.things if thing not in (first, second))
    return _Outcome(with_things(scene, (*rest, *moved)), {"thing": _name(first, rng), "new": _name(second, rng)})


def _replace(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    thing = pick(rng, scene.things)
    new = replace(sample_thing(rng, pick(rng, scene.free_kinds), thing.place), size=thing.size)
    words = {"thing": _name(thing, rng), "new": thing_phrase(ThingClaim(new.kind, new.colour), rng)}
    return _Outcome(_changed(scene, thing, new), words)


def _sky(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    sky = pick(rng, tuple(s for s in SKIES if s != scene.sky))
    words = {
        "new": pick_phrase(rng, (sky, *wording.SKY_NOUNS[sky])),
        "phrase": pick_phrase(rng, wording.SKY_PHRASES[sky]),
    }
    return _Outcome(with_sky(scene, sky), words)


def _ground(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    ground = pick(rng, tuple(g for g in GROUNDS if g != scene.ground))
    words = {
        "new": ground,
        "phrase": pick_phrase(rng, wording.GROUND_PHRASES[ground]),
        "place": pick_phrase(rng, wording.GROUND_NOUNS[ground]),
    }
    return _Outcome(replace(scene, ground=ground), words)


def _backdrop(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    backdrop = pick(rng, tuple(b for b in BACKDROPS if b not in ("none", scene.backdrop)))
    words = {
        "new": pick_phrase(rng, wording.BACKDROP_NOUNS[backdrop]),
        "phrase": pick_phrase(rng, wording.BACKDROP_PHRASES[backdrop]),
    }
    return _Outcome(replace(scene, backdrop=backdrop), words)


def _clear_backdrop(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    if scene.backdrop == "none":
        return None
    return _Outcome(replace(scene, backdrop="none"), {"new": scene.backdrop})


def _light(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    lights = tuple(light for light in LIGHTS if light not in ("none", scene.light) and light in SKY_LIGHTS[scene.sky])
    if not lights:
        return None
    light = pick(rng, lights)
    nouns = (with_article(light), *wording.LIGHT_NOUNS[light][1:])
    return _Outcome(
        replace(scene, light=light),
        {"new": pick_phrase(rng, nouns), "phrase": pick_phrase(rng, wording.LIGHT_PHRASES[light])},
    )


def _clear_light(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    if scene.light == "none":
        return None
    return _Outcome(replace(scene, light="none"), {"new": scene.light})


def _style(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    style = pick(rng, tuple(s for s in STYLES if s != scene.style))
    words = {
        "new": pick(rng, tuple(w for w in wording.STYLE_PHRASES[style] if w.split()[0] in {"in", "with", "as"})),
        "plain": style,
        "picture": pick_phrase(rng, wording.STYLED_IMAGES[style]),
    }
    return _Outcome(with_style(scene, style), words)


def _insert(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    """Into the object's own place if that is free, else into the first free one, unless the instruction names one."""
    second = sample_scene(rng)
    thing = pick(rng, second.things)
    if not scene.free_places or scene.thing(thing.kind) is not None:
        return None
    chosen_place: Place | None = pick(rng, scene.free_places) if rng.random() < 0.4 else None
    place = chosen_place or (thing.place if thing.place in scene.free_places else scene.free_places[0])
    words = {"thing": _name(thing, rng)}
    if chosen_place is not None:
        words["where"] = pick_phrase(rng, wording.PLACE_PHRASES[chosen_place])
    return _Outcome(with_things(scene, (*scene.things, replace(thing, place=place))), words, second)


def _borrow_sky(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    second = sample_scene(rng)
    return None if second.sky == scene.sky else _Outcome(with_sky(scene, second.sky), {}, second)


def _borrow_style(scene: Scene, rng: np.random.Generator) -> _Outcome | None:
    second = sample_scene(rng)
    return _Outcome(with_style(scene, second.style), {}, second)


EDITORS: Final[Mapping[Change, Callable[[Scene, np.random.Generator], _Outcome | None]]] = {
    "recolour": _recolour, "resize": _resize, "add": _add, "remove": _remove, "move": _move, "swap": _swap,
    "replace": _replace, "sky": _sky, "ground": _ground, "backdrop": _backdrop, "clear backdrop": _clear_backdrop,
    "light": _light, "clear light": _clear_light, "style": _style, "insert": _insert, "borrow sky": _borrow_sky,
    "borrow style": _borrow_style,
}  # fmt: skip
DEFAULT_PLACES: Final[tuple[Place, ...]] = (
    "right",
    "left",
    "centre",
)  # of an added object: the first that is free
CHANGES: Final[tuple[Change, ...]] = tuple(EDITORS)
CHANGE_WEIGHTS: Final = (
    0.14, 0.04, 0.12, 0.09, 0.08, 0.04, 0.06, 0.12, 0.08, 0.05, 0.02, 0.06, 0.02, 0.04, 0.02, 0.01, 0.01,
)  # fmt: skip
