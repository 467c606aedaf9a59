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

from tests.support.harness import PLAIN, Server

MODEL = "alpha-image-2-count"
Pixels = npt.NDArray[np.uint8]
FILE = """\
checkpoint     = "{checkpoint}"
{part}
family         = "alpha"
conditioning   = "img2img"
native_area_px = 65536
steps          = 2

[[models]]
name  = "{name}"
tier  = "1K"
price = "0.10"
"""


def write_files(tiny: tuple[Path, Path], folder: Path) -> tuple[Path, Path]:
    """Write "tiny", "other" whose U-Net has other weights, one more U-Net in "parts", and a catalog file for each."""
    weights, configs = folder / "weights", shutil.copytree(tiny[1], folder / "configs")
    shutil.copytree(tiny[0] / "tiny", weights / "tiny")
    for number, name in enumerate(("other", "parts/tuned"), 1):
        shutil.copytree(weights / "tiny", weights / name)
        file = next((weights / name / "unet").glob("*.safetensors"))
        save_file({key: value * 0.5**number for key, value in load_file(file).items()}, file, {"format": "pt"})
    (weights / "bad.safetensors").write_bytes(b"no weights")
    for name, checkpoint, part in (
        ("broken", "tiny", 'vae = "bad.safetensors"'),
        ("tuned", "tiny", 'denoiser = "parts/tuned"  # of last week'),
        ("plain", "other", ""),
    ):
        (configs / f"{name}.toml").write_text(FILE.format(name=name, checkpoint=checkpoint, part=part))
    return weights, configs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("own")
    running = Server(folder / "home", *write_files(tiny, folder), program=PLAIN).start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[Server]:
    """The same with a worker that draws."""
    folder = tmp_path_factory.mktemp("own")
    running = Server(folder / "home", *write_files(tiny, folder)).start()
    yield running
    running.kill()


def drawn_by(server: Server, model: str) -> Pixels:
    body = {"model": model, "prompt": "a red house", "size": "256x256", "response_format": "b64_json", "seed": 7}
    with server.http() as client:
        answer = client.post("/v1/images/generations", json=body)
    assert answer.status_code == 200, answer.text
    content = base64.b64decode(answer.json()["data"][0]["b64_json"])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def asked(server: Server, path: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    return httpx.get(f"{server.base}{path}", headers=headers, timeout=60, trust_env=False).raise_for_status()


def test_each_catalog_file_has_its_own_state(server: Server) -> None:
    rows = {row["model"]: row for row in json.loads(server.darkroom("models", "--json").stdout)}
    assert rows[MODEL]["state"].startswith("loaded")
    assert rows["broken"]["state"].startswith("failed\n")
    assert "bad.safetensors" in rows["broken"]["state"]
    readiness = server.readiness()
    states = {name: report["state"] for name, report in readiness["checkpoints"].items()}
    assert (states["tiny (broken.toml)"], states["tiny (tiny.toml)"], states["other"]) == ("failed", "loaded", "loaded")
    assert (readiness["models"]["broken"], readiness["models"]["plain"]) == (["tiny (broken.toml)"], ["other"])
    assert readiness["image"][0]["failed"].keys() == {"tiny (broken.toml)"}
    lines = [line for line in asked(server, "/metrics").text.splitlines() if line.startswith("darkroom_checkpoint")]
    assert any('checkpoint="tiny (broken.toml)"' in line and line.endswith(" 0.0") for line in lines)
    assert any('checkpoint="tiny (tiny.toml)"' in line and line.endswith(" 1.0") for line in lines)
    assert len({line.partition("}")[0] for line in lines}) == len(lines), "no series is there twice"
    card = next(each for each in asked(server, "/admin/checkpoints").json()["data"] if each["name"] == "tiny")
    assert (card["state"], card["detail"].partition(":")[0]) == ("failed", "broken.toml")
    assert "Checkpoint tiny (broken.toml) does not load" in " ".join(server.log.split())


def test_a_swap_says_what_becomes_of_each_key(server: Server) -> None:
    text = (server.configs / "tuned.toml").read_text()
    swapped = server.darkroom("swap", "tuned", "other")
    assert swapped.returncode == 0, swapped.stderr
    assert "denoiser: parts/tuned -> None  (it took the place of a part of the old checkpoint" in swapped.stdout
    assert "Kept     steps: 2  (both call for 50)" in swapped.stdout
    assert "denoiser" not in (server.configs / "tuned.toml").read_text()
    undone = server.darkroom("undo")
    assert undone.returncode == 0, undone.stderr
    assert (server.configs / "tuned.toml").read_text() == text


def test_a_damaged_file_is_not_swapped_in(server: Server) -> None:
    file = next((server.weights / "other" / "vae").glob("*.safetensors"))
    manifest = server.weights / "other" / "SHA256SUMS"
    manifest.write_text(f"{'ab' * 32}  vae/{file.name}\n")
    server.wait_ready()
    before = server.readiness()["checkpoints"]
    refused = server.darkroom("swap", MODEL, "other", "--keep")
    manifest.unlink()
    assert refused.returncode == 1
    for part in ("Nothing has changed", str(file), "abababababab", str(manifest)):
        assert part in refused.stderr.replace("\n", "")
    assert server.readiness()["checkpoints"] == before


@pytest.mark.nightly
def test_a_swapped_checkpoint_is_drawn_without_the_denoiser_of_the_old_one(drawing: Server) -> None:
    assert "unet is parts/tuned, by its catalog file" in drawing.darkroom("models").stdout
    assert (drawn_by(drawing, "tuned") != (other := drawn_by(drawing, "plain"))).any()
    assert drawing.darkroom("swap", "tuned", "other").returncode == 0
    assert (drawn_by(drawing, "tuned") == other).all()
    assert "by its catalog file" not in drawing.darkroom("models").stdout
