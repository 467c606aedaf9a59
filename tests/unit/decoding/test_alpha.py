"""An image's alpha channel is kept for thumbnails and finished images, and shown on white to everything else."""

import io

import numpy as np
from PIL import Image

from server.backends.decoding.pixels import decode_image

ENOUGH_BYTES = 100_000_000


def half_transparent(kind: str) -> bytes:
    image = Image.new("RGBA", (64, 32), (200, 30, 30, 255))
    image.paste((200, 30, 30, 0), (0, 0, 32, 32))
    file = io.BytesIO()
    image.save(file, kind, lossless=True)
    return file.getvalue()


def test_alpha_is_kept_where_it_is_asked_for() -> None:
    for kind in ("PNG", "WEBP"):
        kept = decode_image(half_transparent(kind), 64 * 32, ENOUGH_BYTES, keep_alpha=True).image
        assert kept.mode == "RGBA"
        assert np.asarray(kept)[0, [0, 63], 3].tolist() == [0, 255]
        shown = decode_image(half_transparent(kind), 64 * 32, ENOUGH_BYTES).image
        assert (shown.mode, shown.getpixel((0, 0)), shown.getpixel((63, 0))) == ("RGB", (255, 255, 255), (200, 30, 30))


def test_a_smaller_image_keeps_its_alpha_and_no_colour_of_what_is_hidden() -> None:
    small = decode_image(half_transparent("PNG"), 16 * 8, ENOUGH_BYTES, keep_alpha=True).image
    assert (small.mode, small.size) == ("RGBA", (16, 8))
    assert np.asarray(small)[:, [0, 15], 3].tolist() == [[0, 255]] * 8


def test_an_image_without_alpha_stays_as_it_is() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    assert decode_image(file.getvalue(), 64, ENOUGH_BYTES, keep_alpha=True).image.mode == "RGB"
