"""The metadata in image files."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from pipelines.images.job_files import encode
from pipelines.protocol.finished_image import DESCRIPTION
from pipelines.protocol.images import Encoding, ImageFormat
from tests.support.marks import DRAWN, EDITED, xmp_source

PIXELS = np.zeros((8, 8, 3), np.uint8)


def description(data: bytes) -> dict[str, object]:
    """Pillow reads the text's bytes as Latin-1."""
    fields: dict[str, object] = json.loads(Image.open(io.BytesIO(data)).getexif()[DESCRIPTION].encode("latin-1"))
    return fields


@pytest.mark.parametrize(("quality", "keeps_lines"), [(100, True), (90, True), (89, False)])
def test_a_jpeg_of_high_quality_keeps_the_colour_of_fine_lines(quality: int, keeps_lines: bool) -> None:
    lines = np.zeros((64, 64, 3), np.uint8)
    lines[:, ::2], lines[:, 1::2] = (255, 0, 0), (0, 0, 255)
    file = Image.open(io.BytesIO(encode(lines, Encoding("jpeg", quality), {}, 7).data))
    error = np.abs(np.asarray(file).astype(int) - lines).mean()
    assert error < 6 if keeps_lines else error > 40


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_a_prompt_in_any_script_survives(kind: ImageFormat) -> None:
    fields = description(encode(PIXELS, Encoding(kind), {"prompt": "一艘红色的船", "model": ""}, 7).data)
    assert fields == {"prompt": "一艘红色的船", "seed": 7}


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("quality", [80, 100])
def test_a_file_says_that_a_model_made_it(kind: ImageFormat, quality: int) -> None:
    marked = encode(PIXELS, Encoding(kind, quality), {"prompt": "red"}, 7).data
    assert xmp_source(marked) == DRAWN
    edited = encode(PIXELS, Encoding(kind, quality, "compositeWithTrainedAlgorithmicMedia"), {}, 7).data
    assert xmp_source(edited) == EDITED
    plain = encode(PIXELS, Encoding(kind, quality, None), {"prompt": "red"}, 7).data
    assert xmp_source(plain) is None
    assert len(marked) - len(plain) < 700
    with Image.open(io.BytesIO(marked)) as image, Image.open(io.BytesIO(plain)) as before:
        assert image.tobytes() == before.tobytes()
        if kind == "png":
            assert (image.info["prompt"], image.info["seed"]) == ("red", "7")


def test_the_longest_texts_are_cut_to_what_a_jpeg_has_room_for() -> None:
    metadata = {"prompt": "船" * 32_000, "negative_prompt": '"\n' * 16_000, "style": "flat"}
    fields = description(encode(PIXELS, Encoding("jpeg"), metadata, 7).data)
    for name in ("prompt", "negative_prompt"):
        text = str(fields[name])
        assert text.endswith("…")
        assert metadata[name].startswith(text[:-1])
        assert len(text) > 5_000
    assert (fields["style"], fields["seed"]) == ("flat", 7)
