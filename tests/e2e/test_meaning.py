"""Whether the images of the shipped starters show what was asked for, judged by their pixels."""

import base64
import io
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

from starters.world.checker import judge, read
from starters.world.claims import Claims, ThingClaim
from starters.world.render import render
from starters.world.scene import Scene, Thing
from tests.support.harness import REPOSITORY, Server

ALPHA, BETA = "alpha-image-2-count", "beta-2.5-flash-image-count"
SIDE_PX = 1024
HOUSE = Scene("day", "grass", "none", "none", (Thing("house", "red", "large", "centre"),), "flat", 7)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A server with the shipped weights and catalog."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(REPOSITORY / "model_configs", folder / "model_configs")
    running = Server(folder / "home", REPOSITORY / "weights", folder / "model_configs", {"preload": "false"}).start()
    yield running.openai(timeout=900)
    running.stop()


def decode(data: Any) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data[0].b64_json))).convert("RGB")


def generate(client: OpenAI, model: str, prompt: str, size: str = "1:1", **options: Any) -> Image.Image:
    options = {"response_format": "b64_json", "seed": 5, "size": size, **options}
    return decode(client.images.generate(model=model, prompt=prompt, extra_body=options).data)


def edit(client: OpenAI, model: str, prompt: str, image: Image.Image, **options: Any) -> Image.Image:
    files = {"mask": png(options.pop("mask"))} if "mask" in options else {}
    options = {"response_format": "b64_json", "seed": 5, "size": f"{image.width}x{image.height}", **options}
    return decode(client.images.edit(model=model, prompt=prompt, image=png(image), extra_body=options, **files).data)


def png(image: Image.Image) -> tuple[str, bytes]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "picture.png", file.getvalue()


@pytest.mark.parametrize("model", [ALPHA, BETA])
def test_a_red_circle_on_the_left_in_the_snow_by_day(client: OpenAI, model: str) -> None:
    image = generate(client, model, "a red circle on the left in the snow by day")
    pixels = np.asarray(image).astype(int)
    left = pixels[int(0.55 * SIDE_PX) : int(0.8 * SIDE_PX), int(0.08 * SIDE_PX) : int(0.3 * SIDE_PX)]
    assert ((left[..., 0] > 150) & (left[..., 1] < 110) & (left[..., 2] < 110)).mean() > 0.1, "red on the left"
    below = pixels[-SIDE_PX // 8 :].mean((0, 1))
    assert below.min() > 190, "white below"
    above = pixels[: SIDE_PX // 8].mean((0, 1))
    assert above[2] > above[0] + 40, "blue above"
    assert judge(image, Claims(sky="day", ground="snow", things=(ThingClaim("circle", "red", "left"),))).obeys


@pytest.mark.nightly
def test_image_to_image_follows_its_reference_and_prompt_by_strength(client: OpenAI) -> None:
    before = render(HOUSE, SIDE_PX, SIDE_PX)
    near = edit(client, ALPHA, "a red house on the grass at sunset", before, strength=0.3)
    far = edit(client, ALPHA, "a red house in the snow at night", before, strength=0.95)
    assert abs(horizon(near) - horizon(before)) < 0.04
    assert read(near).ground == "grass"
    assert (read(far).sky, read(far).ground) == ("night", "snow")


def test_nothing_outside_the_mask_changes(client: OpenAI) -> None:
    before = render(HOUSE, SIDE_PX, SIDE_PX)
    mask = Image.new("RGBA", before.size, (0, 0, 0, 255))
    hole = (int(0.66 * SIDE_PX), int(0.5 * SIDE_PX), int(0.97 * SIDE_PX), int(0.9 * SIDE_PX))
    mask.paste((0, 0, 0, 0), hole)
    after = edit(client, ALPHA, "a red house and a blue tree on the right, grass, day", before, mask=mask, strength=1.0)
    difference = np.abs(np.asarray(after).astype(int) - np.asarray(before).astype(int)).max(2)
    inside = np.zeros(difference.shape, bool)
    inside[hole[1] : hole[3], hole[0] : hole[2]] = True
    assert difference[~inside].max() == 0
    assert (difference[inside] > 40).mean() > 0.05


def test_an_instruction_changes_one_thing(client: OpenAI) -> None:
    after = edit(client, BETA, "make the house blue", render(HOUSE, SIDE_PX, SIDE_PX))
    assert judge(after, Claims(sky="day", ground="grass", things=(ThingClaim("house", "blue", "centre"),))).obeys


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("alpha-image-2-hd-count", "2048x2048"),
        pytest.param("alpha-image-2-4k-count", "16:9", marks=pytest.mark.nightly),  # the same way with more tiles
    ],
)
def test_larger_tiers_are_sharper_than_a_resize(client: OpenAI, model: str, size: str) -> None:
    prompt, shape = "a large red house on the grass by day", "1:1" if size == "2048x2048" else "16:9"
    large = generate(client, model, prompt, size, quality="low")
    small = generate(client, ALPHA, prompt, shape, quality="low")
    assert sharpness(large) > 1.2 * sharpness(small.resize(large.size, Image.Resampling.LANCZOS))


def horizon(image: Image.Image) -> float:
    """The row where the colour changes most, as a share of the height: at the sides, away from the things."""
    pixels = np.asarray(image.resize((256, 256))).astype(float)
    rows = np.concatenate([pixels[:, :20], pixels[:, -20:]], axis=1).mean(1)
    return float(np.abs(rows[4:] - rows[:-4]).sum(1)[60:240].argmax() + 62) / 256


def sharpness(image: Image.Image) -> float:
    """The steepness of the steepest edges: what a resize flattens."""
    grey = np.asarray(image.convert("L")).astype(float)
    return float(np.quantile(np.abs(np.diff(grey, axis=1)), 0.999))
