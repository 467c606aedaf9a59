"""The size rules, over every model, ratio and tier, and for arbitrary pixels."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from server.catalog.images import ImageModel, load_catalog
from server.catalog.sizes import (
    LISTED_SIZES,
    MAX_AREA_PX,
    MIN_AREA_PX,
    SizeError,
    SizeRules,
    Tier,
    enlarged_size,
    is_cut,
    resolve_size,
)

REPOSITORY = Path(__file__).resolve().parents[3]
CATALOG = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights")
MODELS = list(CATALOG.models.values())
EVERY = [(model, ratio) for model in MODELS for ratio in model.ratios]
ALPHA, ALPHA_HD, ALPHA_4K = (CATALOG.models[f"alpha-image-2-{kind}count"].sizes for kind in ("", "hd-", "4k-"))


@pytest.mark.parametrize(("model", "ratio"), EVERY, ids=lambda value: getattr(value, "name", value))
def test_every_preset_keeps_the_promises(model: ImageModel, ratio: str) -> None:
    size = resolve_size(model.sizes, ratio, None)
    wide, high = (int(side) for side in ratio.split(":"))
    assert size.width_px % 16 == size.height_px % 16 == 0
    assert size.width_px * size.height_px <= MAX_AREA_PX[model.tier]
    tolerance = 0.02 if model.tier == "1K" and ratio in {"16:9", "9:16"} else 0.01
    assert abs(size.width_px / size.height_px / (wide / high) - 1) <= tolerance
    if max(wide, high) / min(wide, high) <= 3:
        assert max(size.width_px, size.height_px) <= 3840
    mirrored = resolve_size(model.sizes, f"{high}:{wide}", None)
    assert (mirrored.height_px, mirrored.width_px) == (size.width_px, size.height_px)


@pytest.mark.parametrize(
    ("ratio", "tier", "pixels"),
    [
        ("4:3", "1K", "1360x1024"), ("5:4", "1K", "1280x1024"), ("2:1", "1K", "1920x960"), ("21:9", "1K", "2016x864"),
        ("1:1", "2K", "2048x2048"), ("16:9", "2K", "2736x1536"), ("16:9", "4K", "3840x2160"),
        ("2:1", "4K", "3840x1920"), ("9:21", "4K", "1648x3840"),
    ],
)  # fmt: skip
def test_the_presets_have_the_documented_pixels(ratio: str, tier: str, pixels: str) -> None:
    rules = {"1K": ALPHA, "2K": ALPHA_HD, "4K": ALPHA_4K}[tier]
    assert str(resolve_size(rules, ratio, None)) == pixels


@pytest.mark.parametrize("pixels", LISTED_SIZES)
def test_the_listed_sizes_are_exact_at_1k_and_stand_for_their_ratio_above(pixels: str) -> None:
    assert str(resolve_size(ALPHA, pixels, None)) == pixels
    assert resolve_size(ALPHA_HD, pixels, None) == resolve_size(ALPHA_HD, LISTED_SIZES[pixels], None)


def test_the_interfaces_own_4k_example_works() -> None:
    assert str(resolve_size(ALPHA_4K, "2880x1680", None)) == "2880x1680"


def test_without_size_or_image_it_is_square_or_16_to_9() -> None:
    assert str(resolve_size(ALPHA, None, None)) == "1024x1024"
    assert str(resolve_size(ALPHA_4K, "auto", None)) == "3840x2160"


@pytest.mark.daily("alpha-image-2-count", "beta-3.1-flash-image-4k-count")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@given(width=st.integers(1, 9000), height=st.integers(1, 9000))
def test_any_pixels_are_exact_or_refused_with_a_size_that_works(model: ImageModel, width: int, height: int) -> None:
    requested = f"{width}x{height}"
    assume(requested not in LISTED_SIZES)
    suggested = suggestion(model, requested)
    assert str(resolve_size(model.sizes, suggested, None)) == suggested


def suggestion(model: ImageModel, requested: str) -> str:
    """The size itself if it is drawn, else what its refusal names."""
    try:
        return str(resolve_size(model.sizes, requested, None))
    except SizeError as error:
        return str(error).rpartition("The nearest that works: ")[2].rstrip(".")


@cache
def drawn_sizes(tier: Tier, ratios: tuple[str, ...]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Every size that may be asked for."""
    sides = np.arange(256, 9000, 16)
    wide, high = (axis.ravel() for axis in np.meshgrid(sides, sides))
    shape = np.any([abs(wide / high / _value(ratio) - 1) <= 0.05 + 1e-6 for ratio in ratios], axis=0)
    area = (wide * high >= MIN_AREA_PX[tier]) & (wide * high <= MAX_AREA_PX[tier])
    length = (np.maximum(wide, high) <= 3840) | (np.maximum(wide, high) > 3 * np.minimum(wide, high))
    return np.stack([wide, high], axis=1)[shape & area & length]


@pytest.mark.daily("alpha-image-2-count", "beta-3.1-flash-image-4k-count")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@given(data=st.data())
def test_the_size_that_a_refusal_suggests_is_the_nearest(model: ImageModel, data: st.DataObject) -> None:
    """By the sum of what the sides change, for every size of the tier's area."""
    least, most = max(MIN_AREA_PX[model.tier], 256**2) * 1.03, MAX_AREA_PX[model.tier]
    width = data.draw(st.integers(256, int(most / 256)))
    height = data.draw(st.integers(max(256, -int(-least // width)), max(256, int(most / width))))
    assume(least <= width * height <= most and f"{width}x{height}" not in LISTED_SIZES)
    assume(max(width, height) <= 3840 or max(width, height) > 3 * min(width, height))
    if (suggested := suggestion(model, f"{width}x{height}")) == f"{width}x{height}":
        return  # drawn as it is, off the grid too
    wide, high = (int(side) for side in suggested.split("x"))
    differences = np.abs(drawn_sizes(model.tier, (*model.ratios,)) - (width, height)).sum(axis=1)
    assert abs(wide - width) + abs(high - height) == differences.min()


@pytest.mark.parametrize(
    ("requested", "nearest"),
    [("512x1104", "496x1104"), ("1000x200", "1280x528"), ("4000x4000", "1360x1360"), ("16x16", "256x256")],
)
def test_a_suggestion_keeps_the_shape_and_about_the_area(requested: str, nearest: str) -> None:
    assert suggestion(CATALOG.models["alpha-image-2-count"], requested) == nearest


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@given(width=st.integers(16, 9000), height=st.integers(16, 9000))
def test_any_input_image_is_followed_into_the_tier(model: ImageModel, width: int, height: int) -> None:
    """Between the extremes of the model's ratios as it is, beyond them cut to the nearest."""
    ratios = [_value(ratio) for ratio in model.ratios]
    least, most = min(ratios) * 0.95, max(ratios) * 1.05
    size = resolve_size(model.sizes, None, (width, height))
    area = size.width_px * size.height_px
    assert (size.width_px, size.height_px) == (width, height) or size.width_px % 16 == size.height_px % 16 == 0
    assert MIN_AREA_PX[model.tier] <= area <= MAX_AREA_PX[model.tier]
    assert abs(size.width_px / size.height_px / min(most, max(least, width / height)) - 1) < 0.08
    assert is_cut(size, (width, height)) <= (not least <= width / height <= most)


@pytest.mark.parametrize(
    ("reference", "followed"),
    [
        ((1280, 800), "1280x800"), ((1440, 900), "1440x900"), ((1240, 1754), "1136x1616"), ((604, 644), "604x644"),
        ((1170, 2532), "912x2000"), ((1080, 2340), "912x2000"), ((1000, 900), "1000x900"), ((1500, 500), "1488x608"),
    ],
)  # fmt: skip
def test_screens_pages_and_phones_are_followed(reference: tuple[int, int], followed: str) -> None:
    assert str(resolve_size(ALPHA, None, reference)) == followed
    assert str(resolve_size(ALPHA, followed, reference)) == followed


@pytest.mark.parametrize(
    ("rules", "pixels"), [(ALPHA_HD, "1920x1080"), (ALPHA, "1366x768"), (ALPHA, "1365x1024"), (ALPHA_4K, "3839x2159")]
)
def test_pixels_off_the_grid_are_drawn_exactly(rules: SizeRules, pixels: str) -> None:
    assert str(resolve_size(rules, pixels, None)) == pixels


@pytest.mark.parametrize(
    ("name", "size", "drawn_by"),
    [
        ("gpt-image-2", "2048x2048", "alpha-image-2-hd-count"), ("gpt-image-2", "2560x1440", "alpha-image-2-hd-count"),
        ("gpt-image-2", "3840x2160", "alpha-image-2-4k-count"), ("gpt-image-9-mini", "2160x3840", "beta-2.5-"),
        ("gpt-image-2", "1792x1024", "alpha-image-2-count"), ("gpt-image-2", "16:9", "alpha-image-2-count"),
        ("gpt-image-2", None, "alpha-image-2-count"), ("gpt-image-2", "9999x9999", "alpha-image-2-count"),
        ("dall-e-3", "2048x2048", "alpha-image-2-count"), ("alpha-image-2-count", "2048x2048", "alpha-image-2-count"),
    ],
)  # fmt: skip
def test_a_name_with_tiers_is_drawn_by_the_model_of_the_size(name: str, size: str | None, drawn_by: str) -> None:
    model = CATALOG.find_for_size(name, size)
    assert model is not None
    assert model.name.startswith(drawn_by)


def test_a_refusal_names_the_model_that_would_draw_the_size() -> None:
    with pytest.raises(SizeError, match=r"megapixels\. Model `alpha-image-2-hd-count` draws it\. The nearest"):
        resolve_size(ALPHA, "2048x2048", None)
    with pytest.raises(SizeError, match=r"megapixels\. The nearest"):
        resolve_size(ALPHA, "9000x9000", None)


def _value(ratio: str) -> float:
    wide, high = ratio.split(":")
    return int(wide) / int(high)


@pytest.mark.parametrize(
    ("rules", "pixels"),
    [
        (ALPHA, (1000, 667)), (ALPHA, (999, 999)), (ALPHA, (1365, 1024)), (ALPHA, (257, 256)), (ALPHA, (640, 480)),
        (ALPHA_HD, (1999, 1333)), (ALPHA_4K, (3839, 2159)),
    ],
)  # fmt: skip
def test_an_image_in_the_tier_keeps_its_size_whatever_its_sides(rules: SizeRules, pixels: tuple[int, int]) -> None:
    assert str(resolve_size(rules, None, pixels)) == f"{pixels[0]}x{pixels[1]}"


@pytest.mark.parametrize("pixels", [(3024, 4032), (200, 150), (8000, 4500)])
def test_an_image_outside_the_tier_is_scaled_into_it(pixels: tuple[int, int]) -> None:
    size = resolve_size(ALPHA, None, pixels)
    assert size.width_px % 16 == size.height_px % 16 == 0
    assert abs(size.width_px / size.height_px * pixels[1] / pixels[0] - 1) < 0.03


@pytest.mark.parametrize(
    "size", ["", " ", "0x0", "-16x16", "1024", "1024x", "x1024", "16:9 ", "٣:٢", "1e3x1e3", "0:0", "a" * 999]
)
def test_an_invalid_size_is_refused(size: str) -> None:
    with pytest.raises(SizeError):
        resolve_size(ALPHA, size, None)


@pytest.mark.parametrize(
    ("image", "scale", "expected"),
    [
        ((512, 300), 2, "1024x600"),
        ((1024, 1024), "2K", "2048x2048"),
        ((301, 200), "1K", "1256x834"),
        ((640, 360), "4K", "3840x2160"),
        ((1024, 1024), 4, "draws 4K, at most 8.30 megapixels"),
        ((1200, 900), "1K", "1200x900 is 1K already"),
        ((40, 40), 2, "at least 256"),
    ],
)
def test_an_image_is_enlarged_so_many_times_or_to_the_area_of_a_tier(
    image: tuple[int, int], scale: int | Tier, expected: str
) -> None:
    rules = SizeRules("a-model", "4K", {"1:1": (2880, 2880)})
    try:
        found = str(enlarged_size(rules, scale, image))
    except SizeError as error:
        found = str(error)
    assert expected in found
