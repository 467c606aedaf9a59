"""A folder of adapters behind a real server: one that can't be used harms no call and no other adapter, and a file that
is replaced under its name is another one at once."""

import base64
import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from PIL import Image

from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec
from tests.support.harness import REPOSITORY, Server, assert_clean, charges
from tests.support.tiny_adapters import NAMINGS, layers_of, random_pairs, save
from tests.support.tiny_families import make_family
from tests.support.tiny_server import CATALOG, IMAGES

pytestmark = pytest.mark.nightly

MODEL = "alpha-image-2-count"


class Folder:
    """The adapters of the server's model."""

    def __init__(self, path: Path, denoiser: Any) -> None:
        self.path, self.denoiser = path, denoiser

    def ordinary(self, name: str, seed: int) -> str:
        """Returns the file's hash."""
        tensors, _ = random_pairs(layers_of(self.denoiser), NAMINGS["onetrainer-new"], seed, size=0.5)
        return f"sha256:{hashlib.sha256(save(tensors, self.path / f'{name}.safetensors').read_bytes()).hexdigest()}"

    def control(self, name: str) -> None:
        """Of a model that reads an image beside the latents."""
        tensors, _ = random_pairs(layers_of(self.denoiser), NAMINGS["diffusers"])
        embedder = torch.nn.Linear(2 * self.denoiser.x_embedder.in_features, self.denoiser.x_embedder.out_features)
        tensors |= random_pairs({"x_embedder": embedder}, NAMINGS["diffusers"])[0]
        save(tensors, self.path / f"{name}.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    weights = tmp_path_factory.mktemp("adapters") / "weights"
    make_family("flux", weights / "tiny")
    spec = CheckpointSpec("tiny", weights / "tiny", None, "alpha", "img2img", 1)
    (weights / "loras").mkdir()
    found = Folder(weights / "loras", load_checkpoint(spec, torch.device("cpu")).denoiser)
    found.control("a-control")
    found.ordinary("style", 1)
    return found


@pytest.fixture(scope="module")
def server(folder: Folder) -> Iterator[Server]:
    own = folder.path.parents[1]
    configs = own / "configs"
    configs.mkdir()
    shutil.copy(REPOSITORY / "model_configs" / "presets.toml", configs)
    (configs / "tiny.toml").write_text(f'{IMAGES}\n[runtime]\nlora_folder = "loras"\n')
    (configs / "catalog.toml").write_text(CATALOG)
    running = Server(own / "home", own / "weights", configs, {"device": "cpu"}).start()
    yield running
    running.kill()


def draw(server: Server, **fields: Any) -> tuple[bytes, dict[str, str]]:
    """The file, and what stands in it of adapters, as in the answer."""
    answer = server.openai().images.generate(
        model=MODEL, prompt="a boat", size="256x256", quality="low", response_format="b64_json",
        extra_body={"seed": 4, **fields},
    )  # fmt: skip
    assert answer.data
    file = base64.b64decode(answer.data[0].b64_json or "")
    adapters = json.loads(Image.open(io.BytesIO(file)).info.get("adapters", "{}"))
    assert (answer.model_extra or {})["parameters"].get("adapters", {}) == adapters
    return file, adapters


def pixels(file: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def test_one_that_can_not_be_used_is_refused_with_the_reason_and_harms_nothing(server: Server) -> None:
    base, _ = draw(server)
    before = charges(server)
    with pytest.raises(openai.BadRequestError, match=r"replaces weights of the model \(x_embedder\)") as raised:
        draw(server, loras={"a-control": 1.0})
    assert raised.value.param == "loras"
    assert charges(server) == before
    styled, _ = draw(server, loras={"style": 1.0})
    assert not np.array_equal(pixels(styled), pixels(base))
    again, _ = draw(server)
    assert np.array_equal(pixels(again), pixels(base))
    with server.http() as client:
        assert client.get(f"/v1/models/{MODEL}").json()["adapters"] == ["style"]
    with server.http(server.admin_key) as client:
        cards = {card["name"]: card for card in client.get("/admin/checkpoints/adapters").json()["data"]}
    layers = cards["style"]["layers"]
    assert {name: (card["fits"], card["fitting_layers"]) for name, card in cards.items()} == {
        "a-control": (False, None), "style": (True, layers),
    }  # fmt: skip
    listed = server.darkroom("checkpoints", "adapters").stdout
    assert f"yes, {layers} layers" in " ".join(listed.split())
    assert_clean(server)


def test_a_replaced_file_draws_at_once_and_its_hash_is_in_the_file(server: Server, folder: Folder) -> None:
    images, hashes = [], []
    for seed in (1, 2, 1):
        hashes.append(folder.ordinary("style", seed))
        file, adapters = draw(server, loras={"style": 1.0})
        assert adapters == {"style": hashes[-1]}
        images.append(pixels(file))
    assert hashes[0] == hashes[2] != hashes[1]
    assert np.array_equal(images[0], images[2])
    assert not np.array_equal(images[0], images[1])
    assert draw(server)[1] == {}


def test_one_that_comes_while_the_server_runs_is_checked_when_a_call_names_it(server: Server, folder: Folder) -> None:
    base, _ = draw(server)
    folder.control("new")
    with pytest.raises(openai.BadRequestError, match=r"'new' does not fit it: it replaces weights .* \(x_embedder\)"):
        draw(server, loras={"new": 1.0})
    folder.ordinary("late", 3)
    late, _ = draw(server, loras={"late": 1.0})
    again, _ = draw(server)
    assert np.array_equal(pixels(again), pixels(base))
    assert not np.array_equal(pixels(late), pixels(base))


def test_one_that_was_withdrawn_serves_after_a_reload_once_its_file_is_good(server: Server, folder: Folder) -> None:
    base, _ = draw(server)
    server.darkroom("reload")  # other tests have added some
    assert "No model has changed" in server.darkroom("reload").stdout
    with pytest.raises(openai.BadRequestError, match="replaces weights"):
        draw(server, loras={"a-control": 1.0})
    folder.ordinary("a-control", 5)
    assert MODEL in server.darkroom("reload").stdout
    drawn, _ = draw(server, loras={"a-control": 1.0})
    assert not np.array_equal(pixels(drawn), pixels(base))
    assert np.array_equal(pixels(draw(server)[0]), pixels(base))
    folder.control("a-control")


@pytest.mark.parametrize("name", ["my style (v1.0) [x]", "-dash", "水墨", "a%2Eb"])
def test_an_adapter_has_any_name_that_a_file_has(server: Server, folder: Folder, name: str) -> None:
    base, _ = draw(server)
    hashed = folder.ordinary(name, 7)
    folder.ordinary("a.b", 8)
    alone, adapters = draw(server, loras={name: 1.0})
    both, adapters_of_both = draw(server, loras={name: 1.0, "a.b": 1.0})
    assert adapters == {name: hashed}
    assert adapters_of_both.keys() == {name, "a.b"}
    assert len({pixels(file).tobytes() for file in (base, alone, both)}) == 3
    with server.http() as client:
        assert name in client.get(f"/v1/models/{MODEL}").json()["adapters"]
        body = {"model": MODEL, "prompt": "x", "size": "256x256", "loras": {f"../loras/{name}": 1}}
        refused = client.post("/v1/images/generations", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "loras")
