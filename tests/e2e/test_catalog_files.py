"""Two catalog files on one checkpoint, and a swap of one with a denoiser of its own: each model is told and drawn as
its own file says."""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from tests.support.harness import Server

SAME = 1.0  # rounding differs between a batch and a single image
Pixels = npt.NDArray[np.uint8]
FILE = """\
checkpoint     = "sd"
{part}
family         = "alpha"
conditioning   = "img2img"
native_area_px = 65536
max_area_px    = 65536
steps          = 2

[[models]]
name  = "{name}"
tier  = "1K"
price = "0.10"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path, configs: Path) -> Iterator[Server]:
    """A server with "sd", "other" whose U-Net has other weights, and one more denoiser."""
    own = tmp_path_factory.mktemp("own")
    shutil.copytree(configs, own / "configs")
    (own / "weights").mkdir()
    for folder in weights.iterdir():
        (own / "weights" / folder.name).symlink_to(folder)
    for number, name in enumerate(("sd", "other", "parts/tuned"), 1):
        shutil.copytree(weights / "starter-alpha", own / "weights" / name)
        file = next((own / "weights" / name / "unet").glob("*.safetensors"))
        save_file({key: value * (0.5**number) for key, value in load_file(file).items()}, file, {"format": "pt"})
    header = {"unet.weight": load_file(file)["conv_in.weight"]}
    save_file(header, own / "weights" / "bad.safetensors")
    for name, part in (("plain", ""), ("broken", 'vae = "bad.safetensors"'), ("tuned", 'denoiser = "parts/tuned"')):
        (own / "configs" / f"{name}.toml").write_text(FILE.format(name=name, part=part))
    running = Server(own / "home", own / "weights", own / "configs").start()
    yield running
    running.kill()


def drawn_by(server: Server, model: str) -> Pixels:
    body = {"model": model, "prompt": "a red house", "size": "256x256", "response_format": "b64_json", "seed": 7}
    with server.http() as client:
        answer = client.post("/v1/images/generations", json=body).raise_for_status()
    content = base64.b64decode(answer.json()["data"][0]["b64_json"])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def difference(one: Pixels, other: Pixels) -> float:
    """Mean absolute difference of the channels, 0 to 255."""
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


def asked(server: Server, path: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    return httpx.get(f"{server.base}{path}", headers=headers, timeout=60, trust_env=False).raise_for_status()


def test_each_catalog_file_has_its_own_state_and_notes(server: Server) -> None:
    rows = {row["model"]: row for row in json.loads(server.darkroom("models", "--json").stdout)}
    assert rows["plain"]["state"] == "loaded"
    assert rows["broken"]["state"].startswith("failed\n")
    assert "bad.safetensors" in rows["broken"]["state"]
    assert "unet is parts/tuned, by its catalog file" in rows["tuned"]["state"]
    states = server.readiness()["checkpoints"]
    assert {name: report["state"] for name, report in states.items() if name.startswith("sd")} == {
        "sd (plain.toml)": "loaded", "sd (broken.toml)": "failed", "sd (tuned.toml)": "loaded",
    }  # fmt: skip
    assert states["sd (broken.toml)"]["models"] == ["broken"]
    assert states["starter-beta"]["state"] == "loaded", "those of one name about which the same is known are one"
    lines = [line for line in asked(server, "/metrics").text.splitlines() if line.startswith("darkroom_checkpoint")]
    assert any('checkpoint="sd (broken.toml)"' in line and line.endswith(" 0.0") for line in lines)
    assert len({line.partition("}")[0] for line in lines}) == len(lines), "no series is there twice"
    card = next(each for each in asked(server, "/admin/checkpoints").json()["data"] if each["name"] == "sd")
    assert (card["state"], card["detail"].partition(":")[0]) == ("failed", "broken.toml")


def test_a_swap_leaves_the_denoiser_of_the_old_checkpoint(server: Server) -> None:
    text = (server.configs / "tuned.toml").read_text()
    before = drawn_by(server, "tuned")
    swapped = server.darkroom("swap", "tuned", "other")
    assert swapped.returncode == 0, swapped.stderr
    assert "denoiser: parts/tuned -> None  (it took the place of a part of the old checkpoint" in swapped.stdout
    assert "Kept     steps: 2" in swapped.stdout
    after = drawn_by(server, "tuned")
    assert difference(before, after) > SAME
    assert server.darkroom("swap", "plain", "other").returncode == 0
    assert difference(drawn_by(server, "plain"), after) < SAME, "it draws as the new checkpoint does"
    for _ in range(2):
        assert server.darkroom("undo").returncode == 0
    assert (server.configs / "tuned.toml").read_text() == text
    assert difference(drawn_by(server, "tuned"), before) < SAME


def test_a_damaged_file_is_not_swapped_in(server: Server) -> None:
    folder = server.weights / "other"
    file = next((folder / "vae").glob("*.safetensors"))
    (folder / "SHA256SUMS").write_text(f"{'ab' * 32}  vae/{file.name}\n")
    refused = server.darkroom("swap", "plain", "other")
    assert refused.returncode == 1
    for part in ("Nothing has changed", str(file), "abababababab", "SHA256SUMS"):
        assert part in refused.stderr.replace("\n", "")
    assert server.readiness()["checkpoints"]["sd (plain.toml)"]["state"] == "loaded"
