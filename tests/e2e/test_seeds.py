"""Seeds over HTTP: the same call is the same file, whatever the scheduler, and `darkroom reproduce` says so."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.cli.reproduce import compare_files
from tests.support.harness import Server
from tests.support.tiny_checkpoints import make_sd3
from tests.support.tiny_server import write_tiny_catalog

pytestmark = pytest.mark.nightly  # tests/engines/test_seeds.py asks the engine each day
SCHEDULER = "FlowMatchLCMScheduler"  # adds noise at each step, for which SD 3's pipeline passes no generator on


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("seeds")
    make_sd3(folder / "weights" / "tiny")
    own = folder / "weights" / "tiny" / "scheduler" / "scheduler_config.json"
    own.write_text(json.dumps({**json.loads(own.read_text()), "stochastic_sampling": True}))
    (folder / "configs").mkdir()
    file = write_tiny_catalog(folder / "configs") / "tiny.toml"
    file.write_text(f'schedulers = ["{SCHEDULER}"]\n{file.read_text()}')
    running = Server(folder / "home", folder / "weights", folder / "configs", {})
    yield running.start()
    running.stop()


@pytest.fixture
def draw(server: Server, tmp_path: Path) -> Callable[..., Path]:
    """Draw an image to a file."""

    def call(**fields: Any) -> Path:
        body = {"prompt": "a boat", "size": "256x256", "batch": "exact", "response_format": "b64_json", **fields}
        with server.http() as client:
            answer = client.post("/v1/images/generations", json=body).raise_for_status().json()
        assert "reproducible" not in answer["parameters"]
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.png"
        file.write_bytes(base64.b64decode(answer["data"][0]["b64_json"]))
        return file

    return call


def test_the_models_own_scheduler_and_one_that_is_asked_for_draw_a_seed_again(
    server: Server, draw: Callable[..., Path]
) -> None:
    with server.http() as client:
        (card,) = (card for card in client.get("/v1/models").json()["data"] if card["type"] == "image")
    assert (card["schedulers"], card["reproducible"]) == ([SCHEDULER], True)
    for fields in ({}, {"scheduler": SCHEDULER}):
        first, again, other = (draw(seed=seed, **fields) for seed in (5, 5, 5 + 2**32))
        assert first.read_bytes() == again.read_bytes()
        assert compare_files(first, other)["pixels"]["differing"] > 0
        for file in (first, other):
            assert server.darkroom("reproduce", str(file)).stdout.startswith("The same, bit for bit")


def test_a_seed_that_is_not_sent_is_one_that_every_program_takes(draw: Callable[..., Path]) -> None:
    assert compare_files(draw())["metadata"]["seed"] < 2**32


def test_a_seed_that_cannot_be_kept_is_refused_by_name(server: Server) -> None:
    with server.http() as client:
        refused = client.post("/v1/images/generations", json={"prompt": "a boat", "seed": 2**63})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")
