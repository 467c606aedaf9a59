"""What a scene consists of, and random scenes.

A scene is a value: the same scene is the same image at every size. Details that it does not name
(the line of the hills, where the stars are) follow from its `variant`. Edits do not change that, so an edit changes
only what it says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar, get_args

import numpy as np

Sky = Literal["day", "sunset", "night", "overcast"]
Ground = Literal["grass", "sea", "desert", "snow"]
Backdrop = Literal["none", "mountains", "hills", "city", "clouds"]
Light = Literal["none", "sun", "moon"]
Kind = Literal[
    "house", "tree", "boat", "car", "flower", "cat", "rocket", "lighthouse",
    "circle", "square", "triangle", "star", "heart",
]  # fmt: skip
Colour = Literal["red", "orange", "yellow", "green", "blue", "purple", "pink", "white", "black", "brown"]
Measure = Literal["small", "large"]
Place = Literal["left", "centre", "right"]
Style = Literal["flat", "outlined", "paper-cut", "night-neon"]

SKIES: Final[tuple[Sky, ...]] = get_args(Sky)
GROUNDS: Final[tuple[Ground, ...]] = get_args(Ground)
BACKDROPS: Final[tuple[Backdrop, ...]] = get_args(Backdrop)
LIGHTS: Final[tuple[Light, ...]] = get_args(Light)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
COLOURS: Final[tuple[Colour, ...]] = get_args(Colour)
MEASURES: Final[tuple[Measure, ...]] = get_args(Measure)
PLACES: Final[tuple[Place, ...]] = get_args(Place)
STYLES: Final[tuple[Style, ...]] = get_args(Style)

SHAPES: Final[frozenset[Kind]] = frozenset({"circle", "square", "triangle", "star", "heart"})
AFLOAT: Final[frozenset[Kind]] = SHAPES | {"boat", "rocket"}  # other objects stand on an islet at sea
VARIANTS: Final = 1  # of what no caption names. With one, a caption nearly decides its image, which is learned quickly
T = TypeVar("T")

# Which lights a sky can have. A sun at night or a moon at noon would make "at night" untrue to the eye.
SKY_LIGHTS: Final[Mapping[Sky, tuple[Light, ...]]] = {
    "day": ("none", "sun"),
    "sunset": ("none", "sun", "moon"),
    "night": ("none", "moon"),
    "overcast": ("none",),
}


@dataclass(frozen=True, slots=True)
class Thing:
    kind: Kind
    colour: Colour
    size: Measure
    place: Place


@dataclass(frozen=True, slots=True)
class Scene:
    """One to three objects in a landscape, of different kinds, in different places: "the boat" is unambiguous."""

    sky: Sky
    ground: Ground
    backdrop: Backdrop
    light: Light
    things: tuple[Thing, ...]
    style: Style
    variant: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.things) <= len(PLACES):
            raise ValueError("a scene has one to three objects")
        if len({thing.kind for thing in self.things}) < len(self.things):
            raise ValueError("two objects of one kind")
        places = [PLACES.index(thing.place) for thing in self.things]
        if places != sorted(set(places)):
            raise ValueError("objects are listed from left to right, one in each place")
        if self.light not in SKY_LIGHTS[self.sky]:
            raise ValueError(f"no {self.light} in the {self.sky} sky")
        if self.style == "night-neon" and self.sky != "night":
            raise ValueError("neon shines at night")

    @property
    def free_places(self) -> tuple[Place, ...]:
        taken = {thing.place for thing in self.things}
        return tuple(place for place in PLACES if place not in taken)

    @property
    def free_kinds(self) -> tuple[Kind, ...]:
        present = {thing.kind for thing in self.things}
        return tuple(kind for kind in KINDS if kind not in present)

    def thing(self, kind: Kind) -> Thing | None:
        return next((thing for thing in self.things if thing.kind == kind), None)


def with_sky(scene: Scene, sky: Sky) -> Scene:
    """The scene under another sky: an impossible light is removed, and neon becomes flat by daylight."""
    light = scene.light if scene.light in SKY_LIGHTS[sky] else "none"
    style: Style = "flat" if scene.style == "night-neon" and sky != "night" else scene.style
    return replace(scene, sky=sky, light=light, style=style)


def with_style(scene: Scene, style: Style) -> Scene:
    """The scene in another style. Neon makes it night."""
    return replace(with_sky(scene, "night") if style == "night-neon" else scene, style=style)


def sample_scene(rng: np.random.Generator) -> Scene:
    """A random scene. More likely: one object, no backdrop, the plain style, boats at sea."""
    style: Style = pick(rng, STYLES, (0.55, 0.16, 0.16, 0.13))
    sky: Sky = "night" if style == "night-neon" else pick(rng, SKIES, (0.34, 0.27, 0.2, 0.19))
    ground: Ground = pick(rng, GROUNDS)
    return Scene(
        sky=sky,
        ground=ground,
        backdrop=pick(rng, BACKDROPS, (0.36, 0.16, 0.16, 0.16, 0.16)),
        light=_sample_light(rng, sky),
        things=_sample_things(rng, ground),
        style=style,
        variant=int(rng.integers(VARIANTS)),
    )


def sample_thing(rng: np.random.Generator, kind: Kind, place: Place) -> Thing:
    return Thing(kind, pick(rng, COLOURS), pick(rng, MEASURES, (0.4, 0.6)), place)


def _sample_light(rng: np.random.Generator, sky: Sky) -> Light:
    lights = SKY_LIGHTS[sky]
    return pick(rng, lights, (0.5, *([0.5 / (len(lights) - 1)] * (len(lights) - 1)))) if len(lights) > 1 else "none"


def _sample_things(rng: np.random.Generator, ground: Ground) -> tuple[Thing, ...]:
    count = 1 + int(rng.choice(3, p=(0.5, 0.32, 0.18)))
    weights = np.array([_likelihood(kind, ground) for kind in KINDS])
    kinds = rng.choice(len(KINDS), size=count, replace=False, p=weights / weights.sum())
    if count == 1:  # mostly in the middle, where captions without a place put it
        places = [int(rng.choice(3, p=(0.28, 0.44, 0.28)))]
    else:
        places = sorted(int(place) for place in rng.choice(3, size=count, replace=False))
    return tuple(sample_thing(rng, KINDS[kind], PLACES[place]) for kind, place in zip(kinds, places, strict=True))


def _likelihood(kind: Kind, ground: Ground) -> float:
    if kind == "boat":
        return 2.5 if ground == "sea" else 0.7
    return 1.0 if ground != "sea" or kind in AFLOAT or kind == "lighthouse" else 0.6


def pick(rng: np.random.Generator, values: tuple[T, ...], weights: tuple[float, ...] | None = None) -> T:
    """A random value."""
    return values[int(rng.choice(len(values), p=weights))]
