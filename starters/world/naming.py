"""Names for pixels: the nearest colour of the palette, by a table over all colours of five bits a channel."""

from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from starters.world import palette
from starters.world.palette import RGB, Tone, mix, to_lab
from starters.world.scene import BACKDROPS, COLOURS, GROUNDS, LIGHTS, Backdrop, Colour, Ground, Light

Names = npt.NDArray[np.uint8]
T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]

COLOUR_NAMES: Final[tuple[Colour, ...]] = COLOURS  # a colour's code is its place here
BACKDROP_NAMES: Final[Mapping[Backdrop, int]] = {name: 20 + i for i, name in enumerate(BACKDROPS) if name != "none"}
LIGHT_NAMES: Final[Mapping[Light, int]] = {name: 30 + i for i, name in enumerate(LIGHTS) if name != "none"}
SKY_NAME: Final = 40
GROUND_NAME: Final = 41
DETAIL_NAME: Final = 42  # windows, wheels, stems, shadows, lines

BITS: Final = 5
FAR: Final = 30.0  # in Lab; a pixel this far from every palette colour shows something else
BLACK: Final[RGB] = (0, 0, 0)
WHITE: Final[RGB] = (255, 255, 255)
TONES: Final[tuple[Tone, ...]] = ("day", "sunset", "night", "overcast", "neon")


def guess_tone(pixels: Pixels) -> Tone | None:
    """The sky, by a vote of the pixels at the top, above all hills and objects."""
    strip = pixels[: max(2, round(0.2 * len(pixels)))]
    return _vote(strip, {tone: _sky_colours(tone, 0.5) for tone in TONES})


def guess_ground(pixels: Pixels, tone: Tone | None) -> Ground | None:
    """The ground, by a vote of the pixels in the lowest tenth, given the sky's tone."""
    strip = pixels[-max(2, round(0.1 * len(pixels))) :]
    tones = TONES if tone is None else (tone,)
    return _vote(strip, {g: [c for t in tones for c in _ground_colours(t, g)] for g in GROUNDS})


def name_pixels(pixels: Pixels, tone: Tone, ground: Ground) -> Names:
    """A code for each pixel."""
    table = _table(tone, ground)
    codes = pixels.astype(np.int32) >> (8 - BITS)
    index = (codes[..., 0] << (2 * BITS)) | (codes[..., 1] << BITS) | codes[..., 2]
    names: Names = table[index]
    return names


def _vote(strip: Pixels, choices: Mapping[T, list[RGB]]) -> T | None:
    """The choice that most pixels are nearest to; None if most are far from all."""
    lab = to_lab(strip.reshape(-1, 3).astype(np.float32))
    lab = lab[:: max(1, len(lab) // 1500)]
    nearest = np.stack([_distances(lab, colours).min(1) for colours in choices.values()], axis=1)
    counts = np.bincount(nearest.argmin(1)[nearest.min(1) < FAR], minlength=len(choices))
    best = int(counts.argmax())
    return list(choices)[best] if counts[best] > len(lab) / 3 else None


def _distances(lab: npt.NDArray[np.float32], colours: list[RGB]) -> npt.NDArray[np.float32]:
    anchors = to_lab(np.array(colours, dtype=np.float32))
    apart: npt.NDArray[np.float32] = np.linalg.norm(lab[:, None] - anchors[None], axis=2)
    return apart


@cache
def _table(tone: Tone, ground: Ground) -> Names:
    """The code of every colour under this sky and on this ground."""
    codes: list[int] = []
    anchors: list[RGB] = []
    for code, colours in _anchors(tone, ground):
        codes += [code] * len(colours)
        anchors += colours
    steps = (np.arange(1 << BITS, dtype=np.float32) + 0.5) * (1 << (8 - BITS))
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    lab, anchor_lab = to_lab(grid), to_lab(np.array(anchors, dtype=np.float32))
    # squared distances as a product of matrices: a table of 32768 by 60 colours in a few milliseconds
    apart = (anchor_lab**2).sum(1) - 2 * lab @ anchor_lab.T
    names: Names = np.array(codes, dtype=np.uint8)[apart.argmin(1)]
    return names


def _anchors(tone: Tone, ground: Ground) -> list[tuple[int, list[RGB]]]:
    named = [(i, [palette.OBJECT[c], palette.SHADE[c]]) for i, c in enumerate(COLOUR_NAMES)]
    named.append((SKY_NAME, _sky_colours(tone, 1.0)))
    named.append((GROUND_NAME, _ground_colours(tone, ground)))
    for backdrop, colour in palette.BACKDROP[tone].items():
        named.append((BACKDROP_NAMES[backdrop], [colour, mix(colour, WHITE, 0.1)]))
    named.append((BACKDROP_NAMES["mountains"], [palette.cap_of(tone)]))
    for light, colour in palette.LIGHT[tone].items():
        named.append((LIGHT_NAMES[light], [colour]))
    earth = palette.GROUND[tone][ground]
    sand = palette.GROUND[tone]["desert"]
    details = [palette.INK, palette.SLATE, palette.CREAM, palette.GLASS, palette.WOOD, palette.STEM, palette.ROCK]
    details += [palette.FLAME, palette.EMBER, palette.WINDOW, palette.window_of(tone), palette.STAR]
    details += [mix(earth, BLACK, 0.2), mix(earth, WHITE, 0.4), sand]
    if tone == "neon":
        beside = (earth, palette.SKY[tone][2])
        details += [palette.GLOW[ground], *(mix(palette.GLOW[ground], colour, 0.5) for colour in beside)]
        details += [mix(colour, WHITE, 0.5) for colour in palette.BACKDROP[tone].values()]
    return [*named, (DETAIL_NAME, details)]


def _sky_colours(tone: Tone, down: float) -> list[RGB]:
    """From the top of the sky `down` to a share of it."""
    top, middle, low = palette.SKY[tone]
    shades = [
        mix(top, middle, 2 * t) if t < 0.5 else mix(middle, low, 2 * t - 1) for t in np.linspace(0, down, 7).tolist()
    ]
    return [*shades, (168, 176, 184), (196, 203, 209)] if tone == "overcast" else shades


def _ground_colours(tone: Tone, ground: Ground) -> list[RGB]:
    colour = palette.GROUND[tone][ground]
    return [colour, *(mix(colour, BLACK, share) for share in palette.NEARER[ground])]
