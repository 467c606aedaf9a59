"""Where things are in an image of a given size, for the renderer and the checker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starters.world.scene import Light, Measure, Place, Scene, Sky

PLACE_X: Final[Mapping[Place, float]] = {"left": 0.19, "centre": 0.5, "right": 0.81}  # of the width
COLUMN: Final = 0.155  # half the width of a place: three of them don't touch
SCALE: Final[Mapping[Measure, float]] = {"small": 0.56, "large": 1.0}
DEPTH: Final[Mapping[Measure, float]] = {
    "small": 0.36,
    "large": 0.56,
}  # from the horizon down: what is small is farther
LIGHT_X: Final = 0.655
LIGHT_Y: Final[Mapping[Sky, float]] = {"day": 0.15, "sunset": 0.23, "night": 0.15, "overcast": 0.15}


@dataclass(frozen=True, slots=True)
class Box:
    """Where an object stands: the middle of its foot, and the height of its unit."""

    x: float
    y: float
    unit: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of an image, in pixels."""

    width: int
    height: int
    variant: int

    @property
    def horizon(self) -> float:
        """The line between sky and ground: near 0.63 of the height."""
        return self.height * (0.625 + 0.012 * _share(self.variant, 1))

    @property
    def unit(self) -> float:
        """The size of a large object: it fits into its column and under the lights."""
        return min(self.width * 2 * COLUMN, self.height * 0.46)

    @property
    def stroke(self) -> float:
        """The width of a thin line."""
        return max(0.6, min(self.width, self.height) * 0.0065)

    @property
    def light_radius(self) -> float:
        """Of the sun and the moon."""
        return min(self.width, self.height) * 0.08

    def box(self, size: Measure, place: Place) -> Box:
        """Where an object of this size stands in this place."""
        y = self.horizon + DEPTH[size] * (self.height - self.horizon)
        return Box(self.width * PLACE_X[place], y, self.unit * SCALE[size])

    def light(self, sky: Sky, light: Light) -> tuple[float, float]:
        """The middle of the sun or the moon: between two places, where no tall object reaches."""
        low = LIGHT_Y[sky] if light == "sun" else LIGHT_Y["night"]
        return self.width * LIGHT_X, self.height * low


def layout_of(scene: Scene, width: int, height: int) -> Layout:
    return Layout(width, height, scene.variant)


def _share(variant: int, salt: int) -> float:
    """A pseudo-random number from 0 to 1. Not a Generator, which would be slow in a property."""
    return ((variant * 2654435761 + salt * 40503 * 65537) >> 7) % 1009 / 1008
