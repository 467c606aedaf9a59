"""A modular pipeline as an operator and a client meet it: added, drawn, streamed, edited, swapped in and out, while
nobody asks the hub that its index names for anything."""

import base64
import http.server
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.harness import Server, assert_clean
from tests.support.local_http import QuietHandler, running
from tests.support.tiny_families.modular import make_modular
from tests.support.tiny_server import tiny_server

pytestmark = pytest.mark.nightly

NAME = "modular-sd3"
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
    make_modular(NAME, tmp_path / "weights" / NAME)
    yield running_server.start()
    running_server.stop()


def pixels(encoded: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")).astype(int)


def run(server: Server, *arguments: str) -> str:
    done = server.darkroom(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_modular_pipeline_is_a_checkpoint_like_others_and_no_hub_is_asked(server: Server, asked: list[str]) -> None:
    assert "StableDiffusion3ModularPipeline" in run(server, "checkpoints", "inspect", NAME)
    run(server, "checkpoints", "add", NAME, "--family", "alpha", "--name", NAME)
    assert NAME in run(server, "reload")
    with server.http() as client:
        (card,) = [each for each in client.get("/v1/models").json()["data"] if each["id"] == NAME]
        drawn = client.post(GENERATIONS, json={**BODY, "response_format": "b64_json"}).json()
        streamed = client.post(GENERATIONS, json={**BODY, "stream": True, "partial_images": 2}).text
        file = io.BytesIO()
        Image.effect_noise((256, 256), 90).convert("RGB").save(file, "PNG")
        options = {**BODY, "strength": "0.6", "response_format": "b64_json"}
        edited = client.post("/v1/images/edits", data=options, files={"image": file.getvalue()}).json()
    assert set(card["supports"]) >= {"text", "image", "guidance", "steps"}
    alone = pixels(drawn["data"][0]["b64_json"])
    assert np.ptp(alone) > 0
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    assert np.abs(pixels(events[-1]["b64_json"]) - alone).max() <= 1
    assert np.abs(pixels(edited["data"][0]["b64_json"]) - alone).mean() > 1

    catalog = next(each for each in server.configs.glob("*.toml") if NAME in each.read_text()).read_text()
    run(server, "swap", "alpha-image-2-count", NAME)
    body = {**BODY, "model": "alpha-image-2-count", "response_format": "b64_json"}
    with server.http() as client:
        swapped = client.post(GENERATIONS, json=body).json()
    assert (swapped["parameters"]["checkpoint"], swapped["size"]) == (NAME, "256x256")
    run(server, "undo")
    assert any(each.read_text() == catalog for each in server.configs.glob("*.toml"))
    with server.http() as client:
        back = client.post(GENERATIONS, json=body).json()
    assert back["parameters"]["checkpoint"] == "tiny"
    assert np.abs(pixels(back["data"][0]["b64_json"]) - pixels(swapped["data"][0]["b64_json"])).mean() > 1
    assert asked == [], "something was looked for on the hub"
    assert_clean(server)
