"""Transparent backgrounds over HTTP and in the console: what is announced, stored and answered is the same."""

import base64
import io
import json
import subprocess
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.e2e.test_console import NODE, browser
from tests.support.harness import Server, assert_clean

__all__ = ["browser"]

GENERATIONS = "/v1/images/generations"
OPAQUE, MODEL = "alpha-image-2-count", "alpha-image-3-count"
BODY = {"model": MODEL, "prompt": "a red boat", "size": "256x256", "seed": 4}
TRANSPARENT = {**BODY, "background": "transparent"}


@pytest.fixture
def server(tiny_server: Server) -> Server:
    return tiny_server


def opened(encoded: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def draw(server: Server, **changes: Any) -> tuple[dict[str, Any], Image.Image]:
    """The answer of a call, and its image."""
    with server.http() as client:
        answer = client.post(GENERATIONS, json={**BODY, "response_format": "b64_json", **changes}).json()
    return answer, opened(answer["data"][0]["b64_json"])


def on_white(image: Image.Image) -> Any:
    return np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))).astype(int)


def test_models_announce_what_their_answers_have(server: Server) -> None:
    with server.http() as client:
        supports = {card["id"]: card["supports"] for card in client.get("/v1/models").json()["data"]}
    assert ("transparent" in supports[MODEL], "transparent" in supports[OPAQUE]) == (True, False)
    opaque, without = draw(server)
    assert (opaque["background"], without.mode) == ("opaque", "RGB")
    assert draw(server, background="auto")[0]["background"] == "opaque"
    for kind in ("png", "webp"):
        answer, image = draw(server, background="transparent", output_format=kind)
        assert (answer["background"], answer["output_format"], image.mode) == ("transparent", kind, "RGBA")
        least, most = image.getchannel("A").getextrema()
        assert least < most
        assert np.abs(on_white(image) - on_white(without)).max() <= 1


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"output_format": "jpeg"}, "output_format"), ({"model": OPAQUE}, "background")],
    ids=["in jpeg", "of a model without alpha"],
)
def test_what_can_not_be_transparent_is_refused_by_the_name_of_its_field(
    server: Server, changes: dict[str, str], param: str
) -> None:
    with server.http() as client:
        refused = client.post(GENERATIONS, json={**TRANSPARENT, **changes})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_stream_and_an_edit_keep_alpha_and_the_thumbnail_too(server: Server) -> None:
    with server.http() as client:
        streamed = client.post(GENERATIONS, json={**TRANSPARENT, "stream": True, "partial_images": 1})
        file = io.BytesIO()
        Image.effect_noise((256, 256), 90).convert("RGB").save(file, "PNG")
        edited = client.post(
            "/v1/images/edits", data={**TRANSPARENT, "response_format": "url"}, files={"image": file.getvalue()}
        ).json()
        path = f"/cdn/{edited['data'][0]['url'].rpartition('/')[2]}"
        stored, small = (Image.open(io.BytesIO(client.get(url).content)) for url in (path, f"{path}?w=320"))
        listed = client.get("/v1/darkroom/results").json()["data"][0]
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image", "completed"]
    assert [(event["background"], opened(event["b64_json"]).mode) for event in events] == [("transparent", "RGBA")] * 2
    assert (edited["background"], stored.mode, small.mode, small.format) == ("transparent", "RGBA", "RGBA", "WEBP")
    assert stored.getchannel("A").getextrema()[0] < 255
    assert listed["parameters"]["background"] == "transparent", "it can't be asked for again"


@pytest.mark.nightly
def test_the_console_draws_one_and_shows_it_on_a_checkerboard(server: Server, browser: str) -> None:
    command = ["node", "console/transparent.mjs", browser, server.base, server.key, server.admin_key]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_no_call_was_charged_for_nothing(server: Server) -> None:
    assert_clean(server)
