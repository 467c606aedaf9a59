"""Decoding of untrusted files."""

import base64
import io
import struct
import time
import warnings
import zlib

import pytest
from PIL import Image

from server.backends.image_decoding import PictureError, _open_image, decode_data_uri, decode_mask, decode_picture


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_four_formats_are_decoded(kind: str) -> None:
    decoded = decode_picture(encode(Image.new("RGB", (40, 30), "red"), kind), 10_000)
    assert (decoded.picture.width_px, decoded.picture.height_px) == (40, 30)
    assert decoded.picture.data[0] > 240
    assert len(decoded.picture.data) == 40 * 30 * 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16", "CMYK"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    assert decode_picture(encode(Image.new(mode, (8, 8)), kind), 10_000).picture.mode == "RGB"


def test_transparency_becomes_white() -> None:
    decoded = decode_picture(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 0))), 100)
    assert decoded.picture.data == b"\xff" * 48


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    decoded = decode_picture(encode(Image.new("I;16", (4, 4), 32768)), 100)
    assert decoded.picture.data[0] == 128


def test_exif_orientation_is_applied_before_the_size_is_read() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    decoded = decode_picture(encode(Image.new("RGB", (40, 20)), "JPEG", exif=exif), 10_000)
    assert (decoded.original_width_px, decoded.original_height_px) == (20, 40)


def test_large_pictures_are_scaled_down_and_their_original_size_is_reported() -> None:
    decoded = decode_picture(encode(Image.new("RGB", (400, 200))), 20_000)
    assert (decoded.original_width_px, decoded.original_height_px) == (400, 200)
    assert (decoded.picture.width_px, decoded.picture.height_px) == (200, 100)


def test_a_decompression_bomb_is_refused_without_decoding() -> None:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    started = time.process_time()
    with pytest.raises(PictureError) as refused:
        decode_picture(data + encode(Image.new("RGB", (8, 8)))[33:], 10_000)
    assert refused.value.code == "image_too_large"
    assert time.process_time() - started < 1


def test_a_picture_just_over_64_megapixels_is_too_large() -> None:
    with pytest.raises(PictureError) as refused:
        decode_picture(encode(Image.new("1", (8001, 8000))), 10_000)
    assert refused.value.code == "image_too_large"


NOISE = encode(Image.effect_noise((120, 120), 80))


@pytest.mark.parametrize(
    "data", [b"", b"hello", NOISE[:50], NOISE[:5000], NOISE[:60] + b"\0" * 400 + NOISE[460:], b"GIF89a"]
)
def test_empty_corrupt_and_truncated_files_are_refused(data: bytes) -> None:
    with pytest.raises(PictureError) as refused:
        decode_picture(data, 10_000)
    assert refused.value.code == "invalid_image_file"


def test_formats_outside_the_four_are_refused() -> None:
    with pytest.raises(PictureError):
        decode_picture(encode(Image.new("RGB", (8, 8)), "TIFF"), 10_000)


def test_data_uris() -> None:
    assert decode_data_uri("data:image/png;base64," + base64.b64encode(b"abc").decode()) == b"abc"
    for bad in ("data:image/png;base64,@@", "data:image/png,abc", "data:", "data:;base64,a"):
        with pytest.raises(PictureError):
            decode_data_uri(bad)


def test_a_mask_paints_where_alpha_is_zero() -> None:
    mask = Image.new("RGBA", (4, 2), (0, 0, 0, 255))
    mask.putpixel((0, 0), (0, 0, 0, 0))
    assert decode_mask(encode(mask), (4, 2), (4, 2)).data == b"\xff" + b"\0" * 7


def test_a_mask_without_alpha_paints_where_it_is_white() -> None:
    mask = Image.new("L", (4, 2))
    mask.putpixel((3, 1), 255)
    assert decode_mask(encode(mask), (4, 2), (4, 2)).data == b"\0" * 7 + b"\xff"


def test_a_mask_of_another_size_or_without_a_painted_part_is_refused() -> None:
    with pytest.raises(PictureError, match="size of the image"):
        decode_mask(encode(Image.new("L", (4, 4), 255)), (8, 8), (8, 8))
    with pytest.raises(PictureError, match="nothing to paint"):
        decode_mask(encode(Image.new("L", (4, 4))), (4, 4), (4, 4))


def test_concurrent_decoding_leaves_the_warning_filters_unchanged() -> None:
    before = list(warnings.filters)
    first, second = (_open_image(encode(Image.new("RGB", (4, 4)))) for _ in range(2))
    for step in (first.__enter__, second.__enter__):
        step()
    for decoded in (first, second):  # the first that was entered is left first, as with two threads
        decoded.__exit__(None, None, None)
    assert warnings.filters == before
