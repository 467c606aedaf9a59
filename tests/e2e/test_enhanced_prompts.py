"""Prompts that a chat worker rewrites before an image worker draws them: the text encoder reads them whole, a file has
both, and it is drawn again from what was drawn."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.cli.reproduce import compare_files
from tests.support.harness import Server, charges
from tests.support.scripted_chat import make_scripted
from tests.support.tiny_server import tiny_server

pytestmark = pytest.mark.nightly
LONG = (
    "A small wooden fishing boat with a faded red hull drifts over calm turquoise water at dawn. Its single sail hangs "
    "loose, lit from behind by low golden sunlight, and thin mist covers the far shore. In front, wet pebbles and one "
    "grey heron give depth; above, soft pink clouds are mirrored, painted in loose oil strokes on rough canvas."
)


@pytest.fixture(scope="module", params=["scripted", "noise"])
def enhancing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose chat model writes a long prompt, or, untrained, whatever it writes."""
    server = tiny_server(tmp_path_factory.mktemp("enhancing"))
    if request.param == "scripted":
        shutil.rmtree(server.weights / "tiny-qwen")
        make_scripted(server.weights / "tiny-qwen", "none", {}, LONG)
    yield server.start()
    server.stop()


def draw(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "a boat", "seed": 7, "quality": "low", "response_format": "b64_json", **fields}
    with server.http() as client:
        answer: dict[str, Any] = client.post("/v1/images/generations", json=body).raise_for_status().json()
        return answer


def test_a_prompt_is_rewritten_within_what_is_read_and_drawn_again(enhancing: Server, tmp_path: Path) -> None:
    before = charges(enhancing)
    answer = draw(enhancing, enhance=True)
    (image,) = answer["data"]
    prompt, tokens = image["revised_prompt"], answer["parameters"]["prompt_tokens"]
    assert "cut" not in tokens, tokens
    assert charges(enhancing) == before + 1
    (file := tmp_path / "boat.png").write_bytes(base64.b64decode(image["b64_json"]))
    metadata = compare_files(file)["metadata"]
    assert (metadata["prompt"], metadata["original_prompt"]) == (prompt, "a boat")
    assert metadata["enhanced_by"] == "starter-chat"
    again = draw(enhancing, prompt=prompt)["data"][0]
    (other := tmp_path / "again.png").write_bytes(base64.b64decode(again["b64_json"]))
    assert compare_files(file, other)["pixels"]["differing"] == 0
    told = enhancing.darkroom("reproduce", str(file)).stdout
    assert told.startswith("The same, bit for bit"), told
    assert "original_prompt" not in told


def test_the_same_request_has_the_same_prompt(enhancing: Server) -> None:
    first, second = (draw(enhancing, enhance=True, batch="exact")["data"][0] for _ in range(2))
    assert first == second
