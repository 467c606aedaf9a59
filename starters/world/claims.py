"""What a caption states of a scene, which may be little: "a boat at night" leaves the boat's colour open."""

from dataclasses import dataclass

from starters.world.scene import (
    Backdrop,
    Colour,
    Ground,
    Kind,
    Light,
    Measure,
    Place,
    Scene,
    Sky,
    Style,
    Thing,
)


@dataclass(frozen=True, slots=True)
class ThingClaim:
    """An object, as far as it is stated."""

    kind: Kind
    colour: Colour | None = None
    size: Measure | None = None
    place: Place | None = None

    def fits(self, thing: Thing) -> bool:
        """Whether it is true of this object."""
        stated = ((self.colour, thing.colour), (self.size, thing.size), (self.place, thing.place))
        return self.kind == thing.kind and all(claim in (None, value) for claim, value in stated)


@dataclass(frozen=True, slots=True)
class Claims:
    """A scene, as far as it is stated. None is open; "none" states that there is none."""

    sky: Sky | None = None
    ground: Ground | None = None
    backdrop: Backdrop | None = None
    light: Light | None = None
    style: Style | None = None
    things: tuple[ThingClaim, ...] = ()
    empty: tuple[Place, ...] = ()

    def true_of(self, scene: Scene) -> bool:
        """Whether everything stated is so."""
        stated = (
            (self.sky, scene.sky),
            (self.ground, scene.ground),
            (self.backdrop, scene.backdrop),
            (self.light, scene.light),
            (self.style, scene.style),
        )
        landscape = all(claim in (None, value) for claim, value in stated)
        things = all(any(claim.fits(thing) for thing in scene.things) for claim in self.things)
        return landscape and things and set(self.empty) <= set(scene.free_places)


def claims_of(scene: Scene) -> Claims:
    """Everything there is to state of a scene, the empty places too: what the image after an edit is held to."""
    things = tuple(ThingClaim(t.kind, t.colour, t.size, t.place) for t in scene.things)
    return Claims(scene.sky, scene.ground, scene.backdrop, scene.light, scene.style, things, scene.free_places)
