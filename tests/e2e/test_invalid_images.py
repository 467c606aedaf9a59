"""Weights that are not numbers, in a running server: an adapter that is called, and a checkpoint that is reloaded."""

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.support.harness import Server, assert_clean, charges
from tests.support.tiny_checkpoints import make_sd
from tests.support.tiny_server import write_tiny_catalog

pytestmark = pytest.mark.nightly

PATH = "/v1/images/generations"
BODY = {"model": "alpha-image-2-count", "prompt": "a red boat", "size": "256x256", "seed": 4, "steps": 4}
BROKEN = """
checkpoint = "broken"
family = "alpha"
conditioning = "img2img"
native_area_px = 65536
steps = 2
[[models]]
name = "alpha-image-3-count"
tier = "1K"
price = "0.10"
"""


def write_adapter(checkpoint: Path, file: Path) -> None:
    """A LoRA of random weights for the queries of the denoiser's attention."""
    (unet,) = (checkpoint / "unet").glob("*.safetensors")
    numbers, tensors = torch.Generator().manual_seed(4), {}
    for name, weight in load_file(unet).items():
        if name.endswith("to_q.weight"):
            layer, (rows, columns) = f"unet.{name.removesuffix('.weight')}", weight.shape
            tensors[f"{layer}.lora_A.weight"] = torch.randn(2, columns, generator=numbers)
            tensors[f"{layer}.lora_B.weight"] = torch.randn(rows, 2, generator=numbers)
    file.parent.mkdir()
    save_file(tensors, file)


def spoil(file: Path, weight: str) -> None:
    """Make one number of the weight NaN."""
    tensors = load_file(file)
    (name,) = [name for name in tensors if name.endswith(weight)][:1]
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file, {"format": "pt"})


def previews(server: Server) -> list[tuple[str, Any]]:
    """The previews and the image of a plain stream, as pixels."""
    with server.http() as client:
        answer = client.post(PATH, json={**BODY, "stream": True, "partial_images": 2})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return [
        (event["type"].rpartition(".")[2], np.asarray(Image.open(io.BytesIO(base64.b64decode(event["b64_json"])))))
        for event in events
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny server with a folder of adapters, of which warmup finds one."""
    folder = tmp_path_factory.mktemp("invalid")
    weights, configs = folder / "weights", folder / "configs"
    configs.mkdir()
    make_sd(weights / "tiny")
    write_adapter(weights / "tiny", weights / "loras" / "sketch.safetensors")
    file = write_tiny_catalog(configs) / "tiny.toml"
    file.write_text(file.read_text().replace("[quality]", '[runtime]\nlora_folder = "loras"\n[quality]', 1))
    running = Server(folder / "home", weights, configs).start()
    yield running
    running.stop()


def test_an_adapter_of_no_numbers_is_refused_uncharged_and_changes_no_later_preview(server: Server) -> None:
    """It came into the folder after warmup, which tried the other."""
    before, charged = previews(server), charges(server)
    assert [kind for kind, _ in before] == ["partial_image", "partial_image", "completed"]
    assert all(np.ptp(pixels) > 0 for _, pixels in before)
    folder = server.weights / "loras"
    scaled = {
        name: 5e37 * weight if "lora_B" in name else weight
        for name, weight in load_file(folder / "sketch.safetensors").items()
    }
    save_file(scaled, folder / "diverged.safetensors")  # numbers that overflow where they are used
    with server.http() as client:
        drawn = client.post(PATH, json={**BODY, "loras": {"sketch": 1.0}})
        refused = client.post(PATH, json={**BODY, "loras": {"diverged": 4.0}})
    assert drawn.status_code == 200, drawn.text
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (500, "invalid_picture", "loras")
    assert error["message"].endswith("Nothing was charged. Try it without the adapter 'diverged'.")
    assert refused.headers["x-should-retry"] == "false"
    assert charges(server) == charged + 1
    assert_clean(server)
    after = previews(server)
    assert (after[-1][1] == before[-1][1]).all()
    for (_, one), (_, other) in zip(before[:-1], after[:-1], strict=True):
        assert np.abs(one.astype(int) - other).mean() < 8


def test_a_checkpoint_of_no_numbers_is_not_served(server: Server) -> None:
    broken, file = server.weights / "broken", server.configs / "broken.toml"
    shutil.copytree(server.weights / "tiny", broken)
    spoil(next((broken / "unet").glob("*.safetensors")), "conv_in.weight")
    file.write_text(BROKEN)
    refused = server.darkroom("reload")
    file.unlink()
    assert refused.returncode == 1
    assert "loads and does not draw: its images are not numbers (NaN or infinite)" in " ".join(refused.stderr.split())
    with server.http() as client:
        assert client.post(PATH, json=BODY).status_code == 200
        assert client.post(PATH, json={**BODY, "model": "alpha-image-3-count"}).status_code == 404
