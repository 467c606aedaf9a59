"""What an image shows, from its pixels alone: no network, no knowledge of how it was made.

Every pixel gets the name of the nearest palette colour, among those that are possible with the image's sky and
ground; then the names are counted in each place. An object's kind is judged by its silhouette.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from starters.world.claims import Claims, ThingClaim
from starters.world.layout import COLUMN, PLACE_X, SCALE, Layout
from starters.world.naming import (
    BACKDROP_NAMES,
    COLOUR_NAMES,
    LIGHT_NAMES,
    Names,
    guess_ground,
    guess_tone,
    name_pixels,
)
from starters.world.scene import MEASURES, PLACES, Backdrop, Colour, Ground, Kind, Light, Measure, Place, Sky
from starters.world.silhouettes import Silhouette, guess_kind, guess_size, silhouette_of

AREA_PX: Final = 48_000  # images are reduced to this: more pixels cost time and add nothing
MIN_SIDE_PX: Final = 208  # so that strips are not reduced too far
MIN_AREA_SHARE: Final = 0.035  # of a small object's square: below it there is no object
MEDIAN_VARIANT: Final = 247  # with a horizon neither high nor low
MIN_LIGHT_SHARE: Final = 0.12  # of the disc
MIN_BACKDROP_SHARE: Final[Mapping[Backdrop, float]] = {"mountains": 0.14, "hills": 0.1, "city": 0.12, "clouds": 0.015}


@dataclass(frozen=True, slots=True)
class Detection:
    """What stands in one place; nothing if `colour` is None."""

    colour: Colour | None
    kind: Kind | None = None
    size: Measure | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What an image shows. `sky` and `ground` are None if their colours are not in the palette."""

    sky: Sky | None
    ground: Ground | None
    backdrop: Backdrop
    light: Light
    places: Mapping[Place, Detection]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which claims are true of an image; None for what was not claimed.

    `colours` has one entry for each object: whether its colour is in its place. So has `kinds`, by the silhouette.
    """

    sky: bool | None
    ground: bool | None
    backdrop: bool | None
    light: bool | None
    colours: tuple[bool, ...]
    kinds: tuple[bool, ...]
    empty: tuple[bool, ...]

    @property
    def obeys(self) -> bool:
        """Sky, ground, every object's colour and place, and nothing where nothing should be."""
        return self.sky is not False and self.ground is not False and all(self.colours) and all(self.empty)


def read(image: Image.Image) -> Reading:
    """Detect what an image shows."""
    pixels, layout = _downscale(image)
    tone = guess_tone(pixels)
    ground = guess_ground(pixels, tone)
    names = name_pixels(pixels, tone or "day", ground or "grass")
    sky = "night" if tone == "neon" else tone
    return Reading(
        sky=sky,
        ground=ground,
        backdrop=_backdrop(names, layout),
        light=_light(names, layout),
        places={place: _detect(names, layout, place) for place in PLACES},
    )


def judge(image: Image.Image, claims: Claims) -> Verdict:
    """Compare an image with claims about it."""
    return judge_reading(read(image), claims)


def judge_reading(reading: Reading, claims: Claims) -> Verdict:
    """The same for an image that has been read."""
    matches = [_candidates(reading, claim) for claim in claims.things]
    return Verdict(
        sky=None if claims.sky is None else reading.sky == claims.sky,
        ground=None if claims.ground is None else reading.ground == claims.ground,
        backdrop=None if claims.backdrop is None else reading.backdrop == claims.backdrop,
        light=None if claims.light is None else reading.light == claims.light,
        colours=tuple(bool(matching) for matching in matches),
        empty=tuple(reading.places[place].colour is None for place in claims.empty),
        kinds=tuple(
            any(s.kind == claim.kind for s in matching) for claim, matching in zip(claims.things, matches, strict=True)
        ),
    )


def _candidates(reading: Reading, claim: ThingClaim) -> list[Detection]:
    """Detections in the claimed place (or any) of the claimed colour (or any)."""
    places = PLACES if claim.place is None else (claim.place,)
    detections = [reading.places[place] for place in places]
    return [matches for matches in detections if matches.colour is not None and claim.colour in (None, matches.colour)]


def _downscale(image: Image.Image) -> tuple[npt.NDArray[np.uint8], Layout]:
    scale = min(1.0, max((AREA_PX / (image.width * image.height)) ** 0.5, MIN_SIDE_PX / min(image.size)))
    width, height = max(8, round(image.width * scale)), max(8, round(image.height * scale))
    small = image.convert("RGB").resize((width, height), Image.Resampling.BOX)
    return np.asarray(small), Layout(width, height, MEDIAN_VARIANT)


def _detect(names: Names, layout: Layout, place: Place) -> Detection:
    """The most frequent object colour in a place. Roofs, wheels and windows have other colours, but fewer pixels."""
    feet = [layout.box(size, place) for size in MEASURES]
    top = max(0, round(min(box.y - 1.17 * box.unit for box in feet)))
    bottom = round(max(box.y + 0.1 * box.unit for box in feet))
    middle, half = PLACE_X[place] * layout.width, COLUMN * layout.width
    window = names[top:bottom, max(0, round(middle - half)) : round(middle + half)]
    counts = np.bincount(window.ravel(), minlength=256)[: len(COLOUR_NAMES)]
    best = int(counts.argmax())
    if counts[best] < MIN_AREA_SHARE * (SCALE["small"] * layout.unit) ** 2:
        return Detection(None)
    shape: Silhouette = silhouette_of(window == best)
    kind = guess_kind(shape)
    return Detection(COLOUR_NAMES[best], kind, guess_size(shape, kind, layout.unit))


def _light(names: Names, layout: Layout) -> Light:
    """Sun and moon stand above everything else."""
    counts = np.bincount(names[: round(0.31 * layout.height)].ravel(), minlength=256)
    disc = np.pi * layout.light_radius**2
    best = max(LIGHT_NAMES, key=lambda light: int(counts[LIGHT_NAMES[light]]))
    return best if counts[LIGHT_NAMES[best]] > MIN_LIGHT_SHARE * disc else "none"


def _backdrop(names: Names, layout: Layout) -> Backdrop:
    """By its share of the band above the horizon."""
    band = names[round(0.22 * layout.height) : round(0.65 * layout.height)]
    counts = np.bincount(band.ravel(), minlength=256)
    high = np.bincount(names[: round(0.52 * layout.height)].ravel(), minlength=256)
    counts[BACKDROP_NAMES["clouds"]] = high[BACKDROP_NAMES["clouds"]]  # which near the horizon could be snow
    tall = 0.3 * layout.unit * layout.width  # about what the nearest hills cover
    shares = {name: counts[code] / tall for name, code in BACKDROP_NAMES.items()}
    best = max(shares, key=lambda name: shares[name] / MIN_BACKDROP_SHARE[name])
    return best if shares[best] > MIN_BACKDROP_SHARE[best] else "none"
