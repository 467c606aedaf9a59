"""The thirteen objects as polygons around their foot: x to the right, y up, about one unit high.

A part has a role, not a colour: "body" is the object's colour, and most of the area. So what the caption calls it is
what the eye and the checker see.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np

from starters.world import palette
from starters.world.geometry import (
    Points,
    bezier,
    ellipse,
    petals,
    points,
    rectangle,
    ribbon,
    round_box,
    star,
    union,
)
from starters.world.palette import RGB
from starters.world.scene import Colour, Kind

Role = Literal["body", "shade", "trim", "dark", "glass", "wood", "stem", "rock", "flame", "ember"]


@dataclass(frozen=True, slots=True)
class Part:
    """One polygon of an object."""

    outline: Points
    role: Role


def paint(colour: Colour) -> Mapping[Role, RGB]:
    """The colours of an object's parts."""
    return {
        "body": palette.OBJECT[colour],
        "shade": palette.SHADE[colour],
        "trim": (168, 178, 192) if colour in {"white", "yellow"} else palette.CREAM,
        "dark": palette.SLATE if colour != "black" else (112, 120, 136),
        "glass": palette.GLASS,
        "wood": palette.WOOD,
        "stem": palette.STEM,
        "rock": palette.ROCK,
        "flame": palette.FLAME,
        "ember": palette.EMBER,
    }


@cache
def parts_of(kind: Kind) -> tuple[Part, ...]:
    """The polygons of an object, from back to front."""
    return tuple(Part(outline, role) for role, outline in DRAWERS[kind]())


Drawing = list[tuple[Role, Points]]


def _house() -> Drawing:
    window = [rectangle(x - 0.075, 0.21, x + 0.075, 0.36) for x in (-0.215, 0.215)]
    bars = [rectangle(x - 0.01, 0.21, x + 0.01, 0.36) for x in (-0.215, 0.215)]
    return [
        ("dark", rectangle(0.17, 0.5, 0.28, 0.84)),
        ("body", points((-0.36, 0), (0.36, 0), (0.36, 0.48), (0, 0.84), (-0.36, 0.48))),
        ("shade", points((-0.47, 0.42), (0, 0.87), (0.47, 0.42), (0.47, 0.52), (0, 0.97), (-0.47, 0.52))),
        ("dark", round_box(-0.085, 0, 0.085, 0.3, 0.03)),
        *[("glass", pane) for pane in window],
        *[("dark", bar) for bar in bars],
        ("glass", ellipse(0, 0.56, 0.07, 0.07, count=24)),
    ]


def _tree() -> Drawing:
    lobes = (
        (-0.24, 0.52, 0.19),
        (0.24, 0.52, 0.19),
        (-0.15, 0.76, 0.2),
        (0.15, 0.76, 0.2),
        (0, 0.9, 0.17),
        (0, 0.5, 0.2),
    )
    folds = ((0.26, 0.51, 0.16), (0.05, 0.46, 0.14), (0.24, 0.66, 0.12))
    return [
        ("wood", points((-0.1, 0), (-0.05, 0.12), (-0.05, 0.5), (0.05, 0.5), (0.05, 0.12), (0.1, 0))),
        ("body", union(0, 0.64, lobes)),
        ("shade", union(0.19, 0.5, folds)),
    ]


def _boat() -> Drawing:
    sail = np.concatenate([bezier((-0.035, 1.0), (-0.28, 0.62), (-0.42, 0.3)), points((-0.035, 0.3))])
    jib = np.concatenate([bezier((0.035, 0.88), (0.26, 0.58), (0.36, 0.3)), points((0.035, 0.3))])
    hull = np.concatenate([points((-0.48, 0.25), (0.5, 0.25)), bezier((0.5, 0.25), (0.36, 0.02), (0.24, 0.0)),
                           bezier((-0.28, 0.0), (-0.4, 0.02), (-0.48, 0.25))])  # fmt: skip
    return [
        ("wood", rectangle(-0.02, 0.2, 0.02, 1.04)),
        ("body", sail),
        ("trim", jib),
        ("body", hull),
        ("shade", points((-0.465, 0.2), (0.465, 0.2), (0.5, 0.25), (-0.48, 0.25))),
    ]


def _car() -> Drawing:
    cabin = np.concatenate([points((-0.36, 0.28)), bezier((-0.3, 0.5), (-0.26, 0.55), (-0.18, 0.55), count=8),
                            bezier((0.1, 0.55), (0.2, 0.55), (0.24, 0.48), count=8), points((0.36, 0.28))])  # fmt: skip
    return [
        ("body", cabin),
        ("glass", points((-0.29, 0.32), (-0.235, 0.48), (-0.04, 0.48), (-0.04, 0.32))),
        ("glass", points((0.02, 0.32), (0.02, 0.48), (0.16, 0.48), (0.27, 0.32))),
        ("body", round_box(-0.5, 0.1, 0.5, 0.34, 0.08)),
        ("shade", rectangle(-0.49, 0.12, 0.49, 0.18)),
        ("ember", ellipse(0.465, 0.25, 0.03, 0.045, count=20)),
        *[("dark", ellipse(x, 0.11, 0.115, 0.115, count=32)) for x in (-0.27, 0.27)],
        *[("trim", ellipse(x, 0.11, 0.05, 0.05, count=24)) for x in (-0.27, 0.27)],
    ]


def _flower() -> Drawing:
    stem = bezier((0.03, 0), (-0.05, 0.25), (0, 0.6))
    upper, lower = bezier((0, 0.1), (0.1, 0.34), (0.3, 0.34)), bezier((0.3, 0.34), (0.26, 0.1), (0, 0.1))
    leaf = np.concatenate([upper, lower])
    return [
        ("stem", ribbon(stem, 0.05)),
        *[("stem", leaf * (s, 1)) for s in (-1, 1)],
        ("body", petals(0, 0.68, 0.16, 0.34, 6)),
        ("shade", petals(0, 0.68, 0.1, 0.19, 6)),
        ("ember", ellipse(0, 0.68, 0.095, 0.095, count=28)),
    ]


def _cat() -> Drawing:
    tail = bezier((0.16, 0.06), (0.52, 0.0), (0.3, 0.34), (0.44, 0.46))
    body = np.concatenate(
        [bezier((-0.27, 0.0), (-0.3, 0.36), (-0.1, 0.56)), bezier((0.1, 0.56), (0.3, 0.36), (0.27, 0.0))]
    )
    ears = [points((0.235 * s, 0.68), (0.215 * s, 1.0), (0.03 * s, 0.86)) for s in (-1, 1)]
    inner = [points((0.205 * s, 0.76), (0.195 * s, 0.92), (0.085 * s, 0.85)) for s in (-1, 1)]
    return [
        ("body", ribbon(tail, np.linspace(0.11, 0.075, len(tail)))),
        ("body", ellipse(0.44, 0.46, 0.04, 0.04, count=16)),
        ("body", body),
        ("shade", ellipse(0, 0.24, 0.13, 0.2, count=32)),
        *[("body", ellipse(0.11 * s, 0.03, 0.1, 0.05, start=0, end=360, count=24)) for s in (-1, 1)],
        *[("body", ear) for ear in ears],
        *[("shade", ear) for ear in inner],
        ("body", ellipse(0, 0.69, 0.25, 0.2)),
        *[("glass", ellipse(0.1 * s, 0.71, 0.055, 0.055, count=24)) for s in (-1, 1)],
        *[("dark", ellipse(0.1 * s, 0.71, 0.022, 0.05, count=16)) for s in (-1, 1)],
        ("shade", points((-0.035, 0.63), (0.035, 0.63), (0, 0.595))),
    ]


def _rocket() -> Drawing:
    side = bezier((0.17, 0.24), (0.26, 0.6), (0.12, 0.95), (0, 1.12))
    hull = np.concatenate([side, (side * (-1, 1))[::-1]])
    nose = side[side[:, 1] > 0.86]
    fins = [points((0.14 * s, 0.5), (0.36 * s, 0.26), (0.34 * s, 0.1), (0.15 * s, 0.26)) for s in (-1, 1)]
    flame = np.concatenate(
        [bezier((-0.12, 0.24), (-0.13, 0.1), (0, -0.04)), bezier((0, -0.04), (0.13, 0.1), (0.12, 0.24))]
    )
    return [
        ("flame", flame),
        ("ember", flame * (0.5, 0.6) + (0, 0.1)),
        *[("shade", fin) for fin in fins],
        ("body", hull),
        ("shade", np.concatenate([nose, (nose * (-1, 1))[::-1]])),
        ("dark", rectangle(-0.13, 0.2, 0.13, 0.265)),
        ("dark", ellipse(0, 0.66, 0.105, 0.105, count=32)),
        ("glass", ellipse(0, 0.66, 0.07, 0.07, count=28)),
    ]


def _lighthouse() -> Drawing:
    def band(low: float, high: float) -> Points:
        left, right = 0.22 - 0.11 * low / 0.78, 0.22 - 0.11 * high / 0.78
        return points((-left, low), (left, low), (right, high), (-right, high))

    return [
        ("rock", ellipse(0, 0, 0.38, 0.12, start=0, end=180, count=9)),
        ("body", band(0.04, 0.78)),
        ("trim", band(0.24, 0.34)),
        ("trim", band(0.5, 0.59)),
        ("dark", round_box(-0.055, 0.05, 0.055, 0.19, 0.03)),
        ("dark", rectangle(-0.17, 0.77, 0.17, 0.815)),
        ("glass", rectangle(-0.095, 0.815, 0.095, 0.96)),
        ("dark", rectangle(-0.012, 0.815, 0.012, 0.96)),
        ("shade", points((-0.15, 0.95), (0.15, 0.95), (0, 1.13))),
    ]


def _circle() -> Drawing:
    outer = ellipse(0, 0.45, 0.4, 0.4, start=-70, end=20)
    return [
        ("body", ellipse(0, 0.45, 0.4, 0.4, count=72)),
        ("shade", np.concatenate([outer, bezier(tuple(outer[-1]), (0.3, 0.2), tuple(outer[0]))])),
    ]


def _square() -> Drawing:
    return [
        ("body", rectangle(-0.38, 0.06, 0.38, 0.82)),
        ("shade", points((-0.38, 0.06), (0.38, 0.06), (0.38, 0.82), (0.28, 0.72), (0.28, 0.16), (-0.28, 0.16))),
    ]


def _triangle() -> Drawing:
    return [
        ("body", points((-0.46, 0.06), (0.46, 0.06), (0, 0.88))),
        ("shade", points((0.46, 0.06), (0, 0.88), (0.12, 0.06))),
    ]


def _star() -> Drawing:
    rays = star(0, 0.47, 0.2, 0.46)
    centre = points((0, 0.47))
    facets = [np.concatenate([rays[[i]], rays[[i + 1]], centre]) for i in range(0, 10, 2)]
    return [("body", rays), *[("shade", facet) for facet in facets]]


def _heart() -> Drawing:
    t = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    heart = np.stack([x * 0.027, 0.5 + y * 0.027], axis=1)
    return [("body", heart), ("shade", np.concatenate([heart[14:36], heart[14:36][::-1] * (0.72, 1) + (0, 0.012)]))]


DRAWERS: Final[Mapping[Kind, Callable[[], Drawing]]] = {
    "house": _house, "tree": _tree, "boat": _boat, "car": _car, "flower": _flower, "cat": _cat, "rocket": _rocket,
    "lighthouse": _lighthouse, "circle": _circle, "square": _square, "triangle": _triangle, "star": _star,
    "heart": _heart,
}  # fmt: skip
