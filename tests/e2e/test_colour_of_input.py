"""A photo in Display P3, of odd sides, edited with a soft mask: what is kept is what a viewer shows of the photo."""

import base64
import io
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.support.harness import Server
from tests.support.icc import rgb_profile, shown, stored

MODEL, SIZE = "alpha-image-2-count", (501, 333)


def photo() -> Image.Image:
    """Saturated colours under a sky."""
    across, down = np.meshgrid(np.linspace(0, 1, SIZE[0]), np.linspace(0, 1, SIZE[1]))
    pixels = np.stack([230 * across, 200 * (1 - down), 120 + 100 * np.sin(9 * across) * down], axis=2)
    pixels[220:280, 150:360] = (220, 40, 30)
    return Image.fromarray(pixels.round().astype(np.uint8))


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def edit(server: Server, image: bytes, mask: bytes, **fields: str) -> httpx.Response:
    data = {"model": MODEL, "prompt": "a blue boat", "steps": "2", "response_format": "b64_json", **fields}
    with server.http() as client:
        return client.post("/v1/images/edits", data=data, files={"image": ("a", image), "mask": ("m.png", mask)})


def pixels(answer: httpx.Response) -> "np.ndarray[Any, np.dtype[np.int64]]":
    assert answer.status_code == 200, answer.text
    file = Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
    assert "icc_profile" not in file.info
    return np.asarray(file.convert("RGB")).astype(int)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_the_kept_half_of_a_photo_is_what_a_viewer_shows(server: Server, kind: str) -> None:
    profile = rgb_profile("Display P3")
    data = file_of(stored(photo(), profile), kind, icc_profile=profile, quality=95)
    mask = Image.new("L", SIZE)
    mask.paste(255, (SIZE[0] // 2, 0, *SIZE))
    soft = mask.filter(ImageFilter.GaussianBlur(20))
    seen = np.asarray(shown(Image.open(io.BytesIO(data)).convert("RGB"), profile)).astype(int)
    answer = edit(server, data, file_of(soft))
    drawn, level = pixels(answer), np.asarray(soft)
    assert drawn.shape == (SIZE[1], SIZE[0], 3)
    assert answer.json()["size"] == f"{SIZE[0]}x{SIZE[1]}"
    assert np.abs(drawn - seen)[level == 0].max() <= 1
    assert np.abs(drawn - seen)[level == 255].mean() > 5
    faint = (level > 0) & (level < 13)  # of which at most one part in twenty is new
    assert np.abs(drawn - seen)[faint].max() <= 14


def test_white_in_an_opaque_png_is_painted_as_in_other_files(server: Server) -> None:
    half = Image.new("L", SIZE)
    half.paste(255, (0, 0, SIZE[0] // 2, SIZE[1]))
    opaque = Image.merge("RGBA", (half, half, half, Image.new("L", SIZE, 255)))
    files = [file_of(opaque), file_of(opaque, "WEBP", lossless=True), file_of(half)]
    answers = [pixels(edit(server, file_of(photo()), mask, seed="5")) for mask in files]
    assert (answers[0] == answers[1]).all()
    assert (answers[0] == answers[2]).all()
    assert (answers[0][:, SIZE[0] // 2 :] == np.asarray(photo())[:, SIZE[0] // 2 :]).all()
    first, second = (edit(server, file_of(photo()), files[0], seed="-1").json() for _ in "ab")
    assert first["data"][0]["seed"] != second["data"][0]["seed"]
