"""Catalog reloads and checkpoint swaps in a running server: no call fails, and a broken checkpoint changes nothing."""

import base64
import io
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from tests.support.harness import Server, charges

MODEL = "beta-2.5-flash-image-count"
ITS_FILE = "beta-2.5-flash.toml"
SAME = 1.0  # rounding differs between a batch and a single image
Pixels = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path, configs: Path) -> Iterator[Server]:
    """A server with its own catalog and weights, which tests change."""
    own = tmp_path_factory.mktemp("own")
    shutil.copytree(configs, own / "configs")
    (own / "weights").mkdir()
    for folder in weights.iterdir():
        (own / "weights" / folder.name).symlink_to(folder)
    (own / "weights" / "starter-beta").unlink()
    shutil.copytree(weights / "starter-beta", own / "weights" / "starter-beta")
    running = Server(own / "home", own / "weights", own / "configs").start()
    yield running
    running.kill()


@pytest.fixture
def retrained(server: Server, weights: Path, tmp_path: Path) -> Path:
    """The same architecture as starter-beta with other numbers in its transformer."""
    folder = server.weights / f"retrained-{tmp_path.name}"
    shutil.copytree(weights / "starter-beta", folder)
    file = next((folder / "transformer").glob("*.safetensors"))
    save_file({name: tensor * 0.5 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return folder


def difference(one: Pixels, other: Pixels) -> float:
    """Mean absolute difference of the channels, 0 to 255."""
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


def generate(server: Server) -> Pixels:
    answer = server.openai().images.generate(
        model=MODEL, prompt="a red house", size="1:1", response_format="b64_json", extra_body={"seed": 7}
    )
    assert answer.data
    assert answer.data[0].b64_json
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json))).convert("RGB"))


class Load:
    """Two threads that call without a pause; their images and failures."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.images: list[Pixels] = []
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(2)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        while not self._stop.is_set():
            try:
                self.images.append(generate(self.server))
            except BaseException as error:
                self.failures.append(error)


def test_a_catalog_is_reloaded_without_failing_a_call(server: Server) -> None:
    file = server.configs / ITS_FILE
    text = file.read_text()
    before = generate(server)
    assert "No model has changed" in server.darkroom("reload").stdout
    file.write_text(text.replace("[[models]]", "[[models]\n", 1))
    refused = server.darkroom("reload")
    assert refused.returncode == 1
    assert file.name in refused.stderr
    assert difference(generate(server), before) < SAME
    file.write_text(re.sub(r"(?m)^steps( *= *)2", r"steps\g<1>1", text))
    with Load(server) as load:
        changed = server.darkroom("reload")
    assert changed.returncode == 0, changed.stderr
    assert MODEL in changed.stdout
    assert not load.failures
    assert difference(generate(server), before) > SAME
    file.write_text(text)
    assert server.darkroom("reload").returncode == 0


def test_weights_that_are_replaced_by_older_ones_are_drawn_after_the_next_reload(server: Server) -> None:
    before = generate(server)
    file = next((server.weights / "starter-beta" / "transformer").glob("*.safetensors"))
    part = file.with_name("part")
    save_file({name: tensor * 0.9 for name, tensor in load_file(file).items()}, part, {"format": "pt"})
    os.utime(part, ns=(10**18, 10**18))
    part.replace(file)
    (server.weights / "starter-beta.sha256").unlink(missing_ok=True)  # another test may have added the starter
    assert MODEL in server.darkroom("reload").stdout
    assert difference(generate(server), before) > SAME


@pytest.mark.nightly
def test_a_swap_under_load_fails_no_call_and_survives_a_restart(server: Server, retrained: Path) -> None:
    before = generate(server)
    with Load(server) as load:
        swapped = server.darkroom("swap", MODEL, retrained.name)
    assert swapped.returncode == 0, swapped.stderr
    assert "Flux2KleinPipeline" in swapped.stdout
    assert "sha256" in swapped.stdout
    assert not load.failures
    after = generate(server)
    assert difference(before, after) > 5 * SAME
    for image in load.images:  # each is of one of the two checkpoints
        assert min(difference(image, before), difference(image, after)) < SAME
    assert retrained.name in server.readiness()["checkpoints"]
    server.stop()
    assert difference(generate(server.start()), after) < SAME


def test_a_swap_fits_the_settings_and_is_undone(server: Server) -> None:
    file = server.configs / ITS_FILE
    before, text = generate(server), file.read_text()
    swapped = server.darkroom("swap", MODEL, "starter-alpha")
    assert swapped.returncode == 0, swapped.stderr
    assert "conditioning: native -> img2img" in swapped.stdout
    assert 'conditioning = "img2img"' in file.read_text()
    undone = server.darkroom("undo")
    assert undone.returncode == 0, undone.stderr
    assert file.read_text() == text
    assert difference(generate(server), before) < SAME


@pytest.mark.nightly
def test_a_swap_writes_what_a_file_says_of_itself(server: Server) -> None:
    unet = load_file(next((server.weights / "starter-alpha" / "unet").glob("*.safetensors")))
    save_file({**unet, "v_pred": np.zeros(0, np.float32)}, server.weights / "v.safetensors")
    file = server.configs / "alpha-image-2.toml"
    text = file.read_text()
    swapped = server.darkroom("swap", "alpha-image-2-count", "v.safetensors")
    assert swapped.returncode == 0, swapped.stderr
    assert "Setting  sampling.scheduler_config: None -> prediction_type = v_prediction" in swapped.stdout
    assert 'scheduler_config = {prediction_type = "v_prediction"}' in file.read_text()
    assert "the file says v_pred: prediction_type = v_prediction" in server.readiness()["checkpoints"]["v"]["detail"]
    assert "No model has changed" in server.darkroom("reload").stdout
    assert server.darkroom("undo").returncode == 0
    assert file.read_text() == text


@pytest.mark.nightly
def test_a_grid_is_drawn_again_from_its_sheet(server: Server, tmp_path: Path) -> None:
    """With a model that is served and a checkpoint that is not, and without a charge."""
    sheets = [tmp_path / "one.png", tmp_path / "two.png"]
    shutil.copytree((server.weights / "starter-beta").resolve(), server.weights / "unserved")
    charged, options = charges(server), ["--axis", "steps=1,2", "--seeds", "2", "--size", "64x64"]
    drawn = server.darkroom("checkpoints", "proof", MODEL, "unserved", *options, "-o", str(sheets[0]))
    assert drawn.returncode == 0, drawn.stderr
    again = server.darkroom("checkpoints", "proof", "--from", str(sheets[0]), "-o", str(sheets[1]))
    assert again.returncode == 0, again.stderr
    one, two = (np.asarray(Image.open(sheet).convert("RGB")) for sheet in sheets)
    assert one.shape == two.shape
    assert difference(one, two) < SAME
    assert charges(server) == charged
    listed = server.darkroom("checkpoints", "list")
    assert re.search(r"unserved.*not in the catalog", listed.stdout)
    assert re.search(r"starter-beta.*loaded", listed.stdout)


def test_a_broken_checkpoint_changes_nothing_and_is_explained(server: Server, retrained: Path) -> None:
    server.wait_ready()
    before, readiness = generate(server), server.readiness()["checkpoints"]
    file = next((retrained / "transformer").glob("*.safetensors"))
    content = file.read_bytes()
    for damage, reason in ((content[: len(content) // 2], retrained.name), (b"", "safetensors")):
        file.write_bytes(damage)
        swapped = server.darkroom("swap", MODEL, str(retrained))
        assert swapped.returncode == 1
        assert "Nothing has changed" in swapped.stderr
        assert reason in swapped.stderr
    assert server.darkroom("swap", MODEL, "nowhere").returncode == 1
    assert server.darkroom("swap", "nobody", "starter-beta").returncode == 1
    assert difference(generate(server), before) < SAME
    assert server.readiness()["checkpoints"] == readiness


def test_the_admin_routes_need_the_admin_key(server: Server) -> None:
    for headers in ({}, {"Authorization": f"Bearer {server.key}"}):
        answer = httpx.post(f"{server.base}/admin/reload", headers=headers, timeout=60, trust_env=False)
        assert answer.status_code == 401
        assert answer.json()["error"]["message"]
    admin = {"Authorization": f"Bearer {server.admin_key}"}
    answer = httpx.post(f"{server.base}/admin/swap", headers=admin, json={"model": "x"}, timeout=60, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "checkpoint"
    assert (server.home / "admin-key").stat().st_mode & 0o77 == 0
