"""The size of a call's images. Pure arithmetic over the preset table.

A tier is a range of areas; a model draws only in its own tier's range. What may be asked for is a ratio of the model's
list; what was sent may have any ratio between the list's extremes. Sides within the tier are drawn as they are; those
that the server finds are multiples of 16.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Tier = Literal["1K", "2K", "4K"]

GRID_PX = 16
MIN_SIDE_PX = 256
MAX_AREA_PX: Mapping[Tier, int] = {"1K": 1_850_000, "2K": 4_300_000, "4K": 8_300_000}
MIN_AREA_PX: Mapping[Tier, int] = {"1K": MIN_SIDE_PX**2, "2K": 1_850_001, "4K": 4_300_001}
MAX_SIDE_PX = 3840
ENLARGED_AREA_PX: Mapping[Tier, int] = {"1K": 1024**2, "2K": 2048**2, "4K": 3840 * 2160}  # of an image, to a tier
EXTREME_RATIO = 3  # beyond it a side may exceed MAX_SIDE_PX
RATIO_TOLERANCE = 0.05
FOLLOWED_TOLERANCE = 0.08  # by which the grid's roundest size differs from the ratio of the reference that it follows
EPSILON = 1e-6  # of rounding; what is found is checked by the rules themselves

# The pixel sizes that the API documents; at another tier than 1K they stand for their ratio.
LISTED_SIZES = {"1024x1024": "1:1", "1536x1024": "3:2", "1024x1536": "2:3", "1792x1024": "16:9", "1024x1792": "9:16"}
PIXELS = re.compile(r"([1-9][0-9]{0,5})[xX]([1-9][0-9]{0,5})")
RATIO = re.compile(r"([1-9][0-9]?):([1-9][0-9]?)")


Ratios = tuple[tuple[float, float], ...]  # ranges of width / height


class SizeError(ValueError):
    """The model does not draw this size; the message names sizes that it draws."""


@dataclass(frozen=True, slots=True)
class Size:
    """The exact size of a finished file."""

    width_px: int
    height_px: int

    def __str__(self) -> str:
        return f"{self.width_px}x{self.height_px}"


@dataclass(frozen=True, slots=True)
class SizeRules:
    """One model's tier, and the preset size of each ratio that it accepts."""

    model: str
    tier: Tier
    presets: Mapping[str, tuple[int, int]]
    others: tuple["SizeRules", ...] = ()  # of the same checkpoint's models of other tiers, which have none here


def resolve_size(rules: SizeRules, size: str | None, reference: tuple[int, int] | None) -> Size:
    """Return the size of a call with this `size` field, and the width and height of its first reference, which no call
    without a `size` is refused for. Raises SizeError."""
    if size is None or size == "auto":
        return _default_size(rules) if reference is None else _from_reference(rules, *reference)
    ratio = LISTED_SIZES.get(size, size)
    if ratio in rules.presets:
        return Size(*rules.presets[ratio])
    if RATIO.fullmatch(ratio):
        raise SizeError(f"Invalid size '{size}': {_ratios_hint(rules)}")
    pixels = PIXELS.fullmatch(size)
    if pixels is None:
        raise SizeError(
            f"Invalid size '{size[:40]}'. Use a ratio such as '16:9', pixels such as '1024x1024', or 'auto'."
        )
    asked = Size(int(pixels[1]), int(pixels[2]))
    if reference is not None and asked == _from_reference(rules, *reference):
        return asked  # of the reference's ratio, which may be none of the list
    return _exact_size(rules, asked.width_px, asked.height_px)


def model_of_size(rules: SizeRules, size: str | None) -> str:
    """Return the name of the model that draws these pixels: this one, else one of another tier of its checkpoint; this
    one if none does, and for all that is no pixel size."""
    pixels = None if size is None or size in LISTED_SIZES else PIXELS.fullmatch(size)
    if pixels is None:
        return rules.model
    wide, high = int(pixels[1]), int(pixels[2])
    drawing = (each for each in (rules, *rules.others) if _problem(each, _asked_ratios(each), wide, high) is None)
    return next((each.model for each in drawing), rules.model)


def preset_problem(tier: Tier, ratio: str, width: int, height: int) -> str | None:
    """Return what is wrong with the pixels of a ratio in the preset table; None if nothing is."""
    if RATIO.fullmatch(ratio) is None:
        return "expected a ratio, such as '16:9'"
    if width < MIN_SIDE_PX or height < MIN_SIDE_PX or width % GRID_PX or height % GRID_PX:
        return f"got {width} x {height}, expected multiples of {GRID_PX} from {MIN_SIDE_PX} on"
    rules = SizeRules("this table", tier, {ratio: (width, height)})
    if abs(width / height / _value(ratio) - 1) > RATIO_TOLERANCE:
        return f"got {width} x {height}, which is another ratio"
    problem = _problem(rules, _asked_ratios(rules), width, height)
    return f"got {width} x {height}: {problem}" if problem else None


def enlarged_size(rules: SizeRules, scale: int | Tier, image: tuple[int, int]) -> Size:
    """Return the size of an image of this width and height, enlarged so many times or to a tier's area: any that the
    model's tier has room for, also off the grid and of other ratios. Raises SizeError."""
    times = scale if isinstance(scale, int) else math.sqrt(ENLARGED_AREA_PX[scale] / (image[0] * image[1]))
    width, height = int(image[0] * times), int(image[1] * times)
    most = MAX_AREA_PX[rules.tier]
    by = f"{scale} times" if isinstance(scale, int) else f"{scale} of"
    if times <= 1:
        raise SizeError(f"Invalid 'scale': {image[0]}x{image[1]} is {scale} already. Send a larger one.")
    if width * height > most or max(width, height) > 2 * MAX_SIDE_PX:
        raise SizeError(
            f"Invalid 'scale': {by} {image[0]}x{image[1]} is {width}x{height}, and {rules.model} draws "
            f"{rules.tier}, at most {most / 1e6:.2f} megapixels. Send a smaller image or scale, or name a model of a "
            "larger tier."
        )
    if min(width, height) < MIN_SIDE_PX:
        raise SizeError(
            f"Invalid 'scale': {by} {image[0]}x{image[1]} is {width}x{height}, and both sides must be at "
            f"least {MIN_SIDE_PX}. Send a larger image or scale."
        )
    return Size(width, height)


def half_size(rules: SizeRules, ratio: str | None) -> Size:
    """Return the size whose sides are half of those that the tier has for this ratio, or the nearest that may be asked
    for. Raises SizeError for a ratio that the model does not draw."""
    whole = resolve_size(rules, ratio, None)
    return _nearest_on_grid(rules, _asked_ratios(rules), whole.width_px // 2, whole.height_px // 2)


def is_cut(size: Size, reference: tuple[int, int]) -> bool:
    """Return whether an image of this size shows less than the reference that it follows: one of an extreme ratio."""
    return abs(size.width_px / size.height_px / (reference[0] / reference[1]) - 1) > FOLLOWED_TOLERANCE


def _default_size(rules: SizeRules) -> Size:
    ratio = next(name for name in ("1:1", "16:9", *rules.presets) if name in rules.presets)
    return Size(*rules.presets[ratio])


def _from_reference(rules: SizeRules, width: int, height: int) -> Size:
    """Return the reference's own size; of one outside the tier, or of a more extreme ratio than the model draws, the
    size on the grid that is nearest to it there."""
    ratios = _sent_ratios(rules)
    if _problem(rules, ratios, width, height) is None:
        return Size(width, height)
    return _nearest_on_grid(rules, ratios, width, height)


def _scale_into_tier(tier: Tier, width: int, height: int) -> float:
    area = width * height
    low = MIN_AREA_PX[tier] if tier == "1K" else MIN_AREA_PX[tier] * 1.03  # room for rounding to the grid
    if area > MAX_AREA_PX[tier]:
        scale = math.sqrt(MAX_AREA_PX[tier] / area)
    else:
        scale = max(math.sqrt(low / area) if area < low else 1.0, MIN_SIDE_PX / min(width, height))
    longest, shortest = max(width, height), min(width, height)
    return scale if longest > EXTREME_RATIO * shortest else min(scale, MAX_SIDE_PX / longest)


def _nearest_on_grid(rules: SizeRules, ratios: Ratios, width: int, height: int) -> Size:
    """Return the size of these ratios whose sides differ least from these, scaled into the tier first."""
    scale = _scale_into_tier(rules.tier, width, height)
    wide, high = width * scale, height * scale
    nearest, least = Size(*rules.presets[_nearest_ratio(rules, width, height)]), math.inf
    widest = max(most for _, most in ratios)
    for drawn_wide in _sides_nearest_first(wide, MIN_SIDE_PX, math.sqrt(MAX_AREA_PX[rules.tier] * widest)):
        if abs(drawn_wide - wide) >= least:
            break
        for low, most in _heights(rules, ratios, drawn_wide):
            for drawn_high in _sides_nearest_first(high, low, most):
                difference = abs(drawn_wide - wide) + abs(drawn_high - high)
                if difference >= least:
                    break
                if _problem(rules, ratios, drawn_wide, drawn_high) is None:
                    nearest, least = Size(drawn_wide, drawn_high), difference
    return nearest


def _heights(rules: SizeRules, ratios: Ratios, width: int) -> Iterator[tuple[float, float]]:
    """Yield the ranges of heights in which an image of this width has one of the ratios, and an area of the tier."""
    least, most = MIN_AREA_PX[rules.tier] / width, MAX_AREA_PX[rules.tier] / width
    for narrowest, widest in ratios:
        yield max(least, width / widest), min(most, width / narrowest)


def _sides_nearest_first(side: float, least: float, most: float) -> list[int]:
    """Return the multiples of the grid from `least` to `most`, those nearest to `side` first."""
    first, last = math.ceil(least / GRID_PX - EPSILON), math.floor(most / GRID_PX + EPSILON)
    return sorted((i * GRID_PX for i in range(first, last + 1)), key=lambda multiple: abs(multiple - side))


def _exact_size(rules: SizeRules, width: int, height: int) -> Size:
    ratios = _asked_ratios(rules)
    problem = _problem(rules, ratios, width, height)
    if problem is not None:
        nearest = _nearest_on_grid(rules, ratios, width, height)
        other = model_of_size(rules, f"{width}x{height}")
        named = "" if other == rules.model else f" Model `{other}` draws it."
        raise SizeError(f"Invalid size '{width}x{height}': {problem}{named} The nearest that works: {nearest}.")
    return Size(width, height)


def _problem(rules: SizeRules, ratios: Ratios, width: int, height: int) -> str | None:
    """Return the reason why the model does not draw this size, be it on the grid or not; None if it does."""
    if not any(least <= width / height <= most for least, most in ratios):
        return _ratios_hint(rules)
    area, tier = width * height, rules.tier
    if area > MAX_AREA_PX[tier]:
        return f"{rules.model} draws {tier}, at most {MAX_AREA_PX[tier] / 1e6:.2f} megapixels."
    if area < MIN_AREA_PX[tier] or min(width, height) < MIN_SIDE_PX:
        if tier == "1K":
            return f"both sides must be at least {MIN_SIDE_PX}."
        return f"{rules.model} draws {tier}, more than {MIN_AREA_PX[tier] / 1e6:.2f} megapixels."
    if max(width, height) > MAX_SIDE_PX and max(width, height) / min(width, height) <= EXTREME_RATIO:
        return f"the longest edge must be less than or equal to {MAX_SIDE_PX}."
    return None


def _asked_ratios(rules: SizeRules) -> Ratios:
    """Return the ratios that may be asked for, each with its tolerance."""
    exact = (_value(ratio) for ratio in rules.presets)
    by = RATIO_TOLERANCE + EPSILON
    return tuple((value * (1 - by), value * (1 + by)) for value in exact)


def _sent_ratios(rules: SizeRules) -> Ratios:
    """Return the one range of ratios that a reference may have, from the narrowest to the widest that may be asked
    for."""
    asked = _asked_ratios(rules)
    return ((min(least for least, _ in asked), max(most for _, most in asked)),)


def _nearest_ratio(rules: SizeRules, width: int, height: int) -> str:
    return min(rules.presets, key=lambda ratio: abs(math.log(width / height / _value(ratio))))


def _value(ratio: str) -> float:
    wide, high = ratio.split(":")
    return int(wide) / int(high)


def _ratios_hint(rules: SizeRules) -> str:
    return f"{rules.model} accepts the ratios {', '.join(rules.presets)}."
