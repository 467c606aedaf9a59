"""A modular pipeline as an operator and a client meet it: added, drawn, streamed, edited, painted under a mask, styled
by an adapter, swapped in and out, while nobody asks the hub that its index names for anything."""

import base64
import http.server
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers import UNet2DConditionModel
from PIL import Image

from tests.support.harness import Server, assert_clean
from tests.support.local_http import QuietHandler, running
from tests.support.tiny_adapters import layers_of, naming_of, random_pairs, save
from tests.support.tiny_families.modular import make_modular
from tests.support.tiny_server import tiny_server

pytestmark = pytest.mark.nightly

NAME = "modular-sdxl"
BODY: dict[str, Any] = {"model": NAME, "prompt": "a red boat", "size": "256x256", "seed": 4, "steps": 3}
GENERATIONS = "/v1/images/generations"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that were asked of the hub, which is here and has nothing."""
    paths: list[str] = []

    class Hub(QuietHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_address[1]}")
        yield paths


@pytest.fixture
def server(tmp_path: Path, asked: list[str]) -> Iterator[Server]:
    running_server = tiny_server(tmp_path)
    folder = make_modular(NAME, tmp_path / "weights" / NAME)
    layers = layers_of(UNet2DConditionModel.from_pretrained(folder / "unet"))
    (tmp_path / "weights" / "loras").mkdir()
    save(random_pairs(layers, naming_of("sdxl", "diffusers"))[0], tmp_path / "weights" / "loras" / "style.safetensors")
    yield running_server.start()
    running_server.stop()


def pixels(encoded: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")).astype(int)


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(2).integers(0, 255, (256, 256, 3), dtype=np.uint8))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def run(server: Server, *arguments: str) -> str:
    done = server.darkroom(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_modular_pipeline_is_a_checkpoint_like_others_and_no_hub_is_asked(server: Server, asked: list[str]) -> None:
    assert "StableDiffusionXLModularPipeline" in run(server, "checkpoints", "inspect", NAME)
    run(server, "checkpoints", "add", NAME, "--family", "alpha", "--name", NAME)
    catalog = server.configs / f"{NAME}.toml"
    catalog.write_text(f'{catalog.read_text()}\n[runtime]\nlora_folder = "loras"\n')
    assert NAME in run(server, "reload")
    with server.http() as client:
        (card,) = [each for each in client.get("/v1/models").json()["data"] if each["id"] == NAME]
        drawn = client.post(GENERATIONS, json={**BODY, "response_format": "b64_json"}).json()
        streamed = client.post(GENERATIONS, json={**BODY, "stream": True, "partial_images": 2}).text
        image, mask = noise(), Image.new("RGBA", (256, 256), "black")
        mask.paste((0, 0, 0, 0), (0, 0, 128, 256))  # the left half
        options = {**BODY, "strength": "0.6", "response_format": "b64_json"}
        edited = client.post("/v1/images/edits", data=options, files={"image": png(image)}).json()
        files = {"image": png(image), "mask": png(mask)}
        painted = client.post("/v1/images/edits", data=options, files=files).json()
        styled = client.post(GENERATIONS, json={**BODY, "loras": {"style": 1.0}, "response_format": "b64_json"}).json()
        again = client.post(GENERATIONS, json={**BODY, "response_format": "b64_json"}).json()
    assert set(card["supports"]) >= {"text", "image", "mask", "guidance", "negative_prompt", "steps"}
    assert card["adapters"] == ["style"]
    alone = pixels(drawn["data"][0]["b64_json"])
    assert np.ptp(alone) > 0
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    assert np.abs(pixels(events[-1]["b64_json"]) - alone).max() <= 1
    assert np.abs(pixels(edited["data"][0]["b64_json"]) - alone).mean() > 1
    changed = np.abs(pixels(painted["data"][0]["b64_json"]) - np.asarray(image).astype(int))
    assert (changed[:, 128:].max(), changed[:, :128].mean() > 1) == (0, True)
    assert np.abs(pixels(styled["data"][0]["b64_json"]) - alone).mean() > 1
    assert np.array_equal(pixels(again["data"][0]["b64_json"]), alone)

    text = catalog.read_text()
    run(server, "swap", "alpha-image-2-count", NAME)
    body = {**BODY, "model": "alpha-image-2-count", "response_format": "b64_json"}
    with server.http() as client:
        swapped = client.post(GENERATIONS, json=body).json()
    assert (swapped["parameters"]["checkpoint"], swapped["size"]) == (NAME, "256x256")
    run(server, "undo")
    assert catalog.read_text() == text
    with server.http() as client:
        back = client.post(GENERATIONS, json=body).json()
    assert back["parameters"]["checkpoint"] == "tiny"
    assert np.abs(pixels(back["data"][0]["b64_json"]) - pixels(swapped["data"][0]["b64_json"])).mean() > 1
    assert asked == [], "something was looked for on the hub"
    assert_clean(server)
