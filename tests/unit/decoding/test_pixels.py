"""Decoding of untrusted files: formats, modes, sizes, and what is refused."""

import io
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageOps

from server.backends.decoding import pixels
from server.backends.decoding.messages import ImageError
from server.backends.decoding.pixels import TooMuchMemory, decode_image, decode_mask
from tests.support.bombs import chunk, encode, with_chunks

ENOUGH = 10**9
NOISE = Image.merge("RGBA", [Image.effect_noise((300, 200), 80) for _ in range(4)])


def decode(data: bytes, max_area_px: int = 10_000, max_bytes: int = ENOUGH) -> Image.Image:
    return decode_image(data, max_area_px, max_bytes).image


def decode_plainly(data: bytes, max_area_px: int) -> Image.Image:
    """The same by Pillow's own means, whatever memory it takes."""
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if upright.mode in ("RGBA", "LA") or "transparency" in upright.info:
        rgba = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    elif upright.mode.startswith("I"):
        upright = upright.point(lambda value: value / 256).convert("L")
    rgb = upright.convert("RGB")
    scale = (max_area_px / (rgb.width * rgb.height)) ** 0.5
    if scale < 1:
        size = (int(rgb.width * scale), int(rgb.height * scale))
        rgb = rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    return rgb


def greatest_difference(one: Image.Image, other: Image.Image) -> int:
    assert one.size == other.size
    return max(top for _, top in ImageChops.difference(one, other).getextrema())


def images() -> list[tuple[str, bytes]]:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    paletted = NOISE.convert("RGB").quantize(50)
    rgb = NOISE.convert("RGB")
    return [
        ("RGB", encode(rgb)),
        ("RGBA", encode(NOISE)),
        ("LA", encode(NOISE.convert("LA"))),
        ("L", encode(NOISE.convert("L"))),
        ("1", encode(NOISE.convert("1"))),
        ("P", encode(paletted)),
        ("P with transparency", encode(paletted, transparency=7)),
        ("RGB with a transparent colour", encode(rgb, transparency=rgb.getpixel((5, 5)))),
        ("I;16", encode(Image.linear_gradient("L").convert("I").point(lambda value: value * 257).convert("I;16"))),
        ("upright by EXIF", encode(NOISE, exif=exif)),
        ("JPEG", encode(rgb, "JPEG")),
        ("progressive JPEG", encode(rgb, "JPEG", progressive=True)),
        ("CMYK JPEG", encode(rgb.convert("CMYK"), "JPEG")),
        ("gray JPEG", encode(rgb.convert("L"), "JPEG")),
        ("JPEG upright by EXIF", encode(rgb, "JPEG", exif=exif)),
        ("WebP", encode(NOISE, "WEBP")),
        ("lossless WebP", encode(NOISE, "WEBP", lossless=True)),
        ("GIF", encode(paletted, "GIF")),
        ("GIF with transparency", encode(paletted, "GIF", transparency=7)),
    ]


IMAGES = pytest.mark.parametrize("data", [data for _, data in images()], ids=[name for name, _ in images()])


@IMAGES
@pytest.mark.parametrize("max_area_px", [60_000, 40_000])
def test_a_common_image_is_bit_for_bit_what_pillow_makes_of_it(data: bytes, max_area_px: int) -> None:
    assert decode(data, max_area_px).tobytes() == decode_plainly(data, max_area_px).tobytes()


@IMAGES
@pytest.mark.parametrize("max_area_px", [50_000, 14_000, 2_000])
def test_a_large_image_that_is_shrunk_first_looks_the_same(
    data: bytes, max_area_px: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "SHRUNK_FIRST_PX", 1000)
    monkeypatch.setattr(pixels, "STRIP_PX", 3000)
    decoded, plain = decode(data, max_area_px), decode_plainly(data, max_area_px)
    assert decoded.size == plain.size
    difference = ImageChops.difference(decoded.reduce(4), plain.reduce(4))
    assert max(top for _, top in difference.getextrema()) < 24  # noise, the worst case for any filter


@IMAGES
def test_an_image_that_need_not_shrink_is_the_same_in_strips(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "STRIP_PX", 3000)
    assert greatest_difference(decode(data, 100_000), decode_plainly(data, 100_000)) == 0


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_exif_orientation_is_applied_and_the_original_size_is_upright(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(NOISE.convert("RGB"), kind, exif=exif)
    decoded, plain = decode_image(data, 30_000, ENOUGH), decode_plainly(data, 30_000)
    assert greatest_difference(decoded.image, plain) == 0
    upright = (200, 300) if orientation > 4 else (300, 200)
    assert (decoded.original_width_px, decoded.original_height_px) == upright


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
@pytest.mark.parametrize("exif", [b"Exif\0\0no TIFF header", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
def test_an_image_with_broken_exif_is_shown_as_it_is(kind: str, exif: bytes) -> None:
    data = encode(Image.new("RGB", (40, 20), "red"), kind, lossless=True, exif=exif)
    assert decode_image(data, 10**6, 10**9).image.size == (40, 20)


def test_transparency_becomes_white() -> None:
    assert decode(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 0)))).tobytes() == b"\xff" * 48


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    assert decode(encode(Image.new("I;16", (4, 4), 32768))).tobytes()[0] == 128


def test_large_images_are_scaled_down_and_their_original_size_is_reported() -> None:
    decoded = decode_image(encode(Image.new("RGB", (400, 200))), 20_000, ENOUGH)
    assert (decoded.original_width_px, decoded.original_height_px) == (400, 200)
    assert decoded.image.size == (200, 100)


def test_a_decompression_bomb_is_refused_without_decoding() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
    started = time.process_time()
    with pytest.raises(ImageError) as refused:
        decode(b"\x89PNG\r\n\x1a\n" + header + encode(Image.new("RGB", (8, 8)))[33:])
    assert refused.value.code == "image_too_large"
    assert time.process_time() - started < 1


def test_an_image_just_over_64_megapixels_is_too_large() -> None:
    with pytest.raises(ImageError) as refused:
        decode(encode(Image.new("1", (8001, 8000))))
    assert refused.value.code == "image_too_large"


@pytest.mark.parametrize(
    ("data", "needed_bytes"),
    [
        (encode(Image.new("RGBA", (1000, 1000))), 8_000_000),  # the frame and its RGB pixels
        (encode(Image.new("RGB", (1000, 1000)), "JPEG"), 8_000_000),  # a turned copy
        (encode(Image.new("RGB", (1000, 1000)), "JPEG", progressive=True, subsampling=0), 10_000_000),
        (encode(Image.new("RGB", (1000, 1000)), "WEBP"), 16_000_000),
        (encode(Image.new("RGB", (1000, 1000)), "AVIF", speed=10), 16_000_000),
    ],
    ids=["RGBA", "baseline JPEG", "progressive JPEG", "WebP", "AVIF"],
)
def test_what_an_image_takes_is_known_before_it_is_decoded(data: bytes, needed_bytes: int) -> None:
    assert decode(data, 1_000_000, needed_bytes + len(data)).size == (1000, 1000)
    tracemalloc.start()
    with pytest.raises(TooMuchMemory) as refused:
        decode(data, 1_000_000, needed_bytes - 1)
    assert refused.value.needed_bytes == needed_bytes + len(data)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


DOTS = encode(Image.effect_noise((120, 120), 80))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        DOTS[:50],
        DOTS[:5000],
        DOTS[:60] + b"\0" * 400 + DOTS[460:],
        b"GIF89a",
        *[encode(NOISE.convert("RGB"), kind)[:size] for kind in ("JPEG", "WEBP", "GIF") for size in (40, 2000)],
    ],
)
def test_empty_corrupt_and_truncated_files_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError) as refused:
        decode(data)
    assert refused.value.code == "invalid_image_file"


def test_a_text_that_inflates_is_not_inflated() -> None:
    bomb = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 100_000_000, 9))
    with pytest.raises(ImageError, match="too large"):
        decode(with_chunks(encode(Image.new("RGB", (8, 8))), bomb))


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode(Image.new("RGB", (8, 8)), "TIFF"), "The file is TIFF, which is not read here. Save it as a PNG, JPEG"),
        (encode(Image.new("RGB", (8, 8)), "BMP"), "The file is BMP"),
        (HEIC, "The file is HEIC, which is not read here"),
        (b"%PDF-1.7 ...", "The file is PDF"),
        (b'  <svg xmlns="http://www.w3.org/2000/svg"/>', "The file is SVG"),
        (b"<html>not found</html>", "The file can't be read as a PNG, JPEG, WebP, AVIF or GIF image"),
        (encode(Image.new("RGB", (8, 8)), "AVIF")[:100], "The file can't be read as a PNG, JPEG, WebP, AVIF or GIF"),
    ],
    ids=["TIFF", "BMP", "HEIC", "PDF", "SVG", "HTML", "cut AVIF"],
)
def test_other_formats_are_refused_by_their_name(data: bytes, message: str) -> None:
    with pytest.raises(ImageError) as refused:
        decode(data)
    assert str(refused.value).startswith(message)


def test_an_avif_is_read_upright_with_its_profile_and_alpha() -> None:
    scene = Image.linear_gradient("L").convert("RGB").resize((64, 32))
    read = decode(encode(scene, "AVIF", quality=100, subsampling="4:4:4", speed=10))
    assert np.abs(np.asarray(read, int) - np.asarray(scene, int)).max() <= 2
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encode(scene, "AVIF", exif=exif, speed=10)).size == (32, 64)
    clear = scene.copy()
    clear.putalpha(0)
    assert set(decode(encode(clear, "AVIF", speed=10)).tobytes()) == {255}


def mask_of(data: bytes, original: tuple[int, int], target: tuple[int, int]) -> bytes:
    return decode_mask(data, original, target, ENOUGH).image.tobytes()


def test_a_mask_paints_where_alpha_is_zero() -> None:
    mask = Image.new("RGBA", (4, 2), (0, 0, 0, 255))
    mask.putpixel((0, 0), (0, 0, 0, 0))
    assert mask_of(encode(mask), (4, 2), (4, 2)) == b"\xff" + b"\0" * 7


def test_a_mask_without_alpha_paints_where_it_is_white() -> None:
    mask = Image.new("L", (4, 2))
    mask.putpixel((3, 1), 255)
    assert mask_of(encode(mask), (4, 2), (4, 2)) == b"\0" * 7 + b"\xff"


def test_a_mask_is_turned_upright_before_its_size_is_compared() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    mask = Image.new("L", (4, 2))
    mask.putpixel((0, 1), 255)  # the lower left corner becomes the upper left one
    assert mask_of(encode(mask, exif=exif), (2, 4), (2, 4)) == b"\xff" + b"\0" * 7
    with pytest.raises(ImageError, match="the mask is 2x4, the first reference image 4x2"):
        mask_of(encode(mask, exif=exif), (4, 2), (4, 2))


def test_a_mask_of_another_size_or_without_a_painted_part_is_refused() -> None:
    with pytest.raises(ImageError, match="size of the image"):
        mask_of(encode(Image.new("L", (4, 4), 255)), (8, 8), (8, 8))
    with pytest.raises(ImageError, match="nothing to paint"):
        mask_of(encode(Image.new("L", (4, 4))), (4, 4), (4, 4))
