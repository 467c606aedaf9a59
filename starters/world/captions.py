"""Captions: many wordings of a scene, from two words to three sentences. What a caption states is true of the scene.

Only defaults are left out: daylight, grass (water under a boat), a large object in the middle, no backdrop, no light,
the plain style. So a caption nearly decides its image, and few steps suffice to draw it sharply.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from starters.world import wording
from starters.world.claims import Claims, ThingClaim
from starters.world.scene import PLACES, Ground, Place, Scene, Thing, pick, sample_scene
from starters.world.split import Split, scene_split, text_split
from starters.world.wording import join_list, pick_phrase, with_article

REQUESTS: Final = (
    "draw {}", "paint {}", "please draw {}", "show me {}", "create an image of {}", "I would like {}",
    "make a picture of {}", "generate {}",
)  # fmt: skip
IMAGES: Final = ("a picture of {}", "an illustration of {}", "a poster of {}", "a scene with {}", "an image with {}")
MAX_TRIES: Final = 60
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caption:
    """A text and what it states."""

    text: str
    claims: Claims


def caption(scene: Scene, rng: np.random.Generator) -> Caption:
    """A random caption of the scene."""
    claims = _sample_claims(scene, rng)
    frame = pick(rng, FRAMES, FRAME_WEIGHTS)
    return Caption(_finished(frame(claims, rng), rng), claims)


def full_caption(scene: Scene, rng: np.random.Generator) -> Caption:
    """A caption that states everything but the plain style."""
    things = tuple(ThingClaim(t.kind, t.colour, t.size, t.place) for t in scene.things)
    style = None if scene.style == "flat" else scene.style
    claims = Claims(scene.sky, scene.ground, _unless_none(scene.backdrop), _unless_none(scene.light), style, things)
    return Caption(_finished(_phrase(claims, rng), rng), claims)


def sample_pair(rng: np.random.Generator, split: Split) -> tuple[Scene, Caption]:
    """A scene and a caption, both of this split."""
    while True:
        scene = sample_scene(rng)
        if scene_split(scene) != split:
            continue
        for _ in range(MAX_TRIES):
            sampled = caption(scene, rng)
            if text_split(sampled.text) == split:
                return scene, sampled


def thing_phrase(thing: ThingClaim, rng: np.random.Generator, article: Callable[[str], str] = with_article) -> str:
    """An object without its place."""
    words = [
        "" if thing.size is None else pick_phrase(rng, wording.SIZE_PHRASES[thing.size]),
        "" if thing.colour is None else pick_phrase(rng, wording.COLOUR_PHRASES[thing.colour]),
        pick_phrase(rng, wording.NOUNS[thing.kind]),
    ]
    return article(" ".join(word for word in words if word))


def _sample_claims(scene: Scene, rng: np.random.Generator) -> Claims:
    terse = rng.random() < 0.35
    left_out = 0.75 if terse else 0.3  # the share of defaults that are left out
    usual = usual_places(len(scene.things))
    placed = tuple(thing.place for thing in scene.things) != usual or rng.random() > left_out
    things = tuple(_claim(thing, placed, left_out, rng) for thing in scene.things)
    return Claims(
        sky=None if scene.sky == "day" and rng.random() < left_out else scene.sky,
        ground=None if scene.ground == usual_ground(scene) and rng.random() < left_out else scene.ground,
        backdrop=_unless_none(scene.backdrop),
        light=_unless_none(scene.light),
        style=None if scene.style == "flat" and rng.random() < 0.9 else scene.style,
        things=things,
    )


def usual_places(count: int) -> tuple[Place, ...]:
    """The default places of so many objects, in the order in which they are named."""
    usual: Mapping[int, tuple[Place, ...]] = {1: ("centre",), 2: ("left", "right"), 3: PLACES}
    return usual[count]


def usual_ground(scene: Scene) -> Ground:
    """The default ground under the first object."""
    return "sea" if scene.things[0].kind in {"boat", "lighthouse"} else "grass"


def _claim(thing: Thing, placed: bool, left_out: float, rng: np.random.Generator) -> ThingClaim:
    large = thing.size == "large"
    return ThingClaim(
        thing.kind,
        thing.colour if rng.random() < 0.96 else None,
        None if large and rng.random() < max(left_out, 0.6) else thing.size,
        thing.place if placed else None,
    )


def _unless_none(value: T) -> T | None:
    return None if value == "none" else value


def _things(claims: Claims, rng: np.random.Generator, *, before: bool = False) -> str:
    """All objects, each with its place after or before it."""
    phrases = []
    for thing in claims.things:
        phrase = thing_phrase(thing, rng)
        if thing.place is not None:
            place = pick_phrase(rng, wording.PLACE_PHRASES[thing.place])
            phrase = f"{place} {phrase}" if before else f"{phrase} {place}"
        phrases.append(phrase)
    return join_list(phrases)


def _landscape(claims: Claims, rng: np.random.Generator) -> list[str]:
    """Sky, ground, backdrop and light as phrases that follow an object."""
    first = [
        None if claims.ground is None else pick_phrase(rng, wording.GROUND_PHRASES[claims.ground]),
        None if claims.sky is None else pick_phrase(rng, wording.SKY_PHRASES[claims.sky]),
    ]
    second = [
        None if claims.backdrop is None else pick_phrase(rng, wording.BACKDROP_PHRASES[claims.backdrop]),
        None if claims.light is None else pick_phrase(rng, wording.LIGHT_PHRASES[claims.light]),
    ]
    for pair in (first, second):
        if rng.random() < 0.35:
            pair.reverse()
    return [phrase for phrase in first + second if phrase is not None]


def _phrase(claims: Claims, rng: np.random.Generator) -> str:
    """A red boat on the left at sea at sunset, with mountains behind."""
    joint = " " if rng.random() < 0.6 else ", "
    text = joint.join([_things(claims, rng), *_landscape(claims, rng)])
    if claims.style is None:
        return text
    if rng.random() < 0.5:
        return f"{pick_phrase(rng, wording.STYLED_IMAGES[claims.style])} of {text}"
    return f"{text}, {pick_phrase(rng, wording.STYLE_PHRASES[claims.style])}"


def _request(claims: Claims, rng: np.random.Generator) -> str:
    """Please draw a red boat."""
    return pick(rng, REQUESTS).format(_phrase(claims, rng))


def _image(claims: Claims, rng: np.random.Generator) -> str:
    """A poster of a red boat. A style that is stated names the image already."""
    return _phrase(claims, rng) if claims.style else pick(rng, IMAGES).format(_phrase(claims, rng))


def _view(claims: Claims, rng: np.random.Generator) -> str:
    """Sunset over the ocean, small red sailboat on the left."""
    if claims.sky is None or claims.ground is None:
        return _phrase(claims, rng)
    sky, ground = pick_phrase(rng, wording.SKY_NOUNS[claims.sky]), pick_phrase(rng, wording.GROUND_NOUNS[claims.ground])
    text = f"{sky} over {ground}"
    return ", ".join([text, _things(claims, rng, before=bool(rng.random() < 0.3)), *_nouns(claims, rng)])


def _tags(claims: Claims, rng: np.random.Generator) -> str:
    """Red boat left, sea, sunset."""
    tags = []
    for thing in claims.things:
        place = (
            "" if thing.place is None else f" {pick_phrase(rng, (thing.place, *wording.PLACE_PHRASES[thing.place]))}"
        )
        tags.append(thing_phrase(thing, rng, article=str) + place)
    rest = _nouns(claims, rng)
    if claims.sky is not None:
        rest.append(pick_phrase(rng, (claims.sky, *wording.SKY_NOUNS[claims.sky])))
    if claims.ground is not None:
        rest.append(pick_phrase(rng, (claims.ground, *wording.GROUND_NOUNS[claims.ground])))
    return ", ".join([*tags, *(rest[i] for i in rng.permutation(len(rest)))])


def _sentences(claims: Claims, rng: np.random.Generator) -> str:
    """There is a red boat on the left. The scene is at sea at sunset."""
    things = _things(claims, rng, before=bool(rng.random() < 0.3))
    verb = "are" if len(claims.things) > 1 and rng.random() < 0.4 else "is"
    parts = [pick(rng, (f"there {verb} {things}", f"the picture shows {things}", f"we see {things}"))]
    scenery = _landscape(claims, rng)
    if scenery:
        parts.append(f"{pick(rng, ('the scene is set', 'it is', 'all of it is'))} {' '.join(scenery)}")
    if claims.style is not None:
        parts.append(f"it is {pick_phrase(rng, wording.STYLED_IMAGES[claims.style])}")
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."


def _nouns(claims: Claims, rng: np.random.Generator) -> list[str]:
    """Backdrop, light and style where nothing precedes them."""
    return [
        *([] if claims.backdrop is None else [pick_phrase(rng, wording.BACKDROP_NOUNS[claims.backdrop])]),
        *([] if claims.light is None else [pick_phrase(rng, wording.LIGHT_NOUNS[claims.light])]),
        *([] if claims.style is None else [pick_phrase(rng, wording.STYLE_PHRASES[claims.style])]),
    ]


def _finished(text: str, rng: np.random.Generator) -> str:
    """Mostly in lower case, sometimes with a capital and a full stop."""
    if rng.random() < 0.35:
        text = text[0].upper() + text[1:]
    return f"{text}." if rng.random() < 0.2 and not text.endswith(".") else text


FRAMES: Final = (_phrase, _request, _image, _view, _tags, _sentences)
FRAME_WEIGHTS: Final = (0.4, 0.12, 0.1, 0.16, 0.13, 0.09)
