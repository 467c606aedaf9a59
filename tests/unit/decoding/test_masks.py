"""A mask is read by its content: alpha where it differs, else brightness, and all that is between blends."""

import io
import struct
from typing import Any

import pytest
from PIL import Image

from server.backends.decoding.messages import ImageError
from server.backends.decoding.pixels import decode_mask
from tests.support.bombs import encode

ENOUGH = 10**9
SIZE = (64, 32)
LEFT = Image.new("L", SIZE)
LEFT.paste(255, (0, 0, 32, 32))
OPAQUE, HALF_OPAQUE, CLEAR = (Image.new("L", SIZE, alpha) for alpha in (255, 128, 0))
SOFT = Image.linear_gradient("L").rotate(90).resize(SIZE)


def decode(data: bytes, target: tuple[int, int] = SIZE) -> Image.Image:
    return decode_mask(data, SIZE, target, ENOUGH).image


def rgba(gray: Image.Image, alpha: Image.Image) -> Image.Image:
    return Image.merge("RGBA", (gray, gray, gray, alpha))


def inverted(image: Image.Image) -> Image.Image:
    return image.point(lambda value: 255 - value)


def sixteen_bits(gray: Image.Image) -> Image.Image:
    return Image.frombytes("I;16", gray.size, struct.pack(f"<{64 * 32}H", *(value * 257 for value in gray.tobytes())))


def gif_with_transparency(transparent: bool) -> bytes:
    paletted = LEFT.point(lambda value: value // 255).convert("P")
    paletted.putpalette([0, 0, 0, 255, 255, 255])
    return encode(paletted, "GIF", **({"transparency": 1} if transparent else {}))


# files that all paint the left half
LEFT_HALVES: dict[str, bytes] = {
    "L": encode(LEFT),
    "1": encode(LEFT.convert("1")),
    "RGB": encode(LEFT.convert("RGB")),
    "P": encode(LEFT.convert("P")),
    "16 bits": encode(sixteen_bits(LEFT)),
    "16 bits with a transparent gray": encode(sixteen_bits(LEFT), transparency=1000),
    "CMYK": encode(LEFT.convert("RGB").convert("CMYK"), "JPEG", quality=100),
    "JPEG": encode(LEFT, "JPEG", quality=60),
    "lossy WebP": encode(LEFT.convert("RGB"), "WEBP", quality=60),
    "lossless WebP": encode(LEFT.convert("RGB"), "WEBP", lossless=True),
    "opaque RGBA": encode(rgba(LEFT, OPAQUE)),
    "opaque RGBA as WebP": encode(rgba(LEFT, OPAQUE), "WEBP", lossless=True),
    "half opaque RGBA": encode(rgba(LEFT, HALF_OPAQUE)),
    "half opaque RGBA as WebP": encode(rgba(LEFT, HALF_OPAQUE), "WEBP", lossless=True),
    "opaque LA": encode(Image.merge("LA", (LEFT, OPAQUE))),
    "alpha of RGBA": encode(rgba(OPAQUE, inverted(LEFT))),
    "alpha of a photo as WebP": encode(rgba(SOFT, inverted(LEFT)), "WEBP", lossless=True),
    "alpha of a photo as lossy WebP": encode(rgba(SOFT, inverted(LEFT)), "WEBP", quality=80),
    "alpha of LA": encode(Image.merge("LA", (SOFT, inverted(LEFT)))),
    "GIF": gif_with_transparency(False),
    "GIF with a transparent colour": gif_with_transparency(True),
    "palette with transparency": encode(LEFT.point(lambda value: value // 255).convert("P"), transparency=b"\xff\0"),
    "palette without a transparent pixel": encode(LEFT.convert("P"), transparency=7),
}


@pytest.mark.parametrize("name", LEFT_HALVES)
def test_every_file_of_the_left_half_paints_it(name: str) -> None:
    painted = decode(LEFT_HALVES[name])
    if "JPEG" in name or name == "lossy WebP":  # which blur the edge
        painted.paste(LEFT.crop((28, 0, 36, 32)), (28, 0))
    assert painted.tobytes() == LEFT.tobytes()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize(
    "mask",
    [rgba(OPAQUE, OPAQUE), rgba(OPAQUE, HALF_OPAQUE), rgba(CLEAR, CLEAR), rgba(SOFT, CLEAR)],
    ids=["white", "white at half alpha", "clear black", "clear image"],
)
def test_a_mask_that_is_white_or_clear_everywhere_paints_all(mask: Image.Image, kind: str) -> None:
    assert set(decode(encode(mask, kind, lossless=True)).tobytes()) == {255}


@pytest.mark.parametrize(
    "data",
    [encode(SOFT), encode(sixteen_bits(SOFT)), encode(rgba(CLEAR, inverted(SOFT))), encode(rgba(SOFT, OPAQUE)),
     encode(rgba(SOFT, inverted(SOFT)), "WEBP", lossless=True)],
    ids=["L", "16 bits", "alpha", "opaque", "alpha of WebP"],
)  # fmt: skip
def test_a_soft_mask_stays_soft_between_its_ends(data: bytes) -> None:
    ends = [0] * 16 + [*range(16, 240)] + [255] * 16
    assert decode(data).tobytes() == SOFT.point(ends).tobytes()


NEARLY = LEFT.point(lambda level: 243 if level else 12)


@pytest.mark.parametrize(
    "data",
    [encode(NEARLY), encode(sixteen_bits(NEARLY)), encode(NEARLY.convert("RGB")), encode(rgba(SOFT, inverted(NEARLY))),
     encode(Image.merge("LA", (SOFT, inverted(NEARLY)))), encode(NEARLY.convert("RGB"), "WEBP", lossless=True),
     encode(NEARLY.convert("P"))],
    ids=["L", "16 bits", "RGB", "alpha", "LA", "WebP", "P"],
)  # fmt: skip
def test_nearly_black_keeps_and_nearly_white_paints_in_every_format(data: bytes) -> None:
    assert decode(data).tobytes() == LEFT.tobytes()


def test_a_mask_without_paint_is_refused() -> None:
    for nothing in (encode(CLEAR), encode(rgba(CLEAR, OPAQUE)), encode(Image.new("L", SIZE, 9), "JPEG")):
        with pytest.raises(ImageError, match="leaves nothing to paint"):
            decode(nothing)


def test_a_mask_of_zeros_and_ones_is_refused() -> None:
    for mask in (LEFT.point(bool), rgba(LEFT, inverted(LEFT.point(bool)))):
        with pytest.raises(ImageError, match=r"leaves nothing to paint.* At most, it paints 1 of 255"):
            decode(encode(mask))


@pytest.mark.parametrize("target", [(32, 16), (50, 25)])
def test_a_mask_that_is_scaled_keeps_its_parts_and_no_more(target: tuple[int, int]) -> None:
    scaled = decode(encode(LEFT), target)
    middle = target[0] // 2
    assert set(scaled.crop((0, 0, middle - 2, target[1])).tobytes()) == {255}
    assert set(scaled.crop((middle + 2, 0, *target)).tobytes()) == {0}


def test_the_same_pixels_are_the_same_mask_in_both_formats() -> None:
    noise: Any = [Image.effect_noise(SIZE, 90) for _ in range(4)]
    for mask in (Image.merge("RGBA", noise), rgba(noise[0], HALF_OPAQUE), Image.merge("RGB", noise[:3])):
        files = [encode(mask), encode(mask, "WEBP", lossless=True), encode(mask, "WEBP", lossless=True, exact=True)]
        assert len({decode(data).tobytes() for data in files}) == 1
        assert Image.open(io.BytesIO(files[1])).format == "WEBP"
