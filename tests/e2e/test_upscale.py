"""POST /v1/images/upscale: an image of exactly twice or four times the size, charged as its model says, or refused by
the field's name."""

import base64
import io
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.e2e.test_console import NODE, browser
from tests.support.harness import Server, assert_clean, charges
from tests.support.tiny_upscalers import make_upscaler

__all__ = ["browser"]

PATH = "/v1/images/upscale"
MODEL = "alpha-image-2-count"


@pytest.fixture
def server(tiny_server: Server) -> Server:
    return tiny_server


def image(width: int = 301, height: int = 200) -> bytes:
    file = io.BytesIO()
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    Image.fromarray(np.stack([across, down, 255 - across], axis=2).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def uri(width: int = 301, height: int = 200) -> str:
    return f"data:image/png;base64,{base64.b64encode(image(width, height)).decode()}"


def opened(answer: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"])))


def test_an_image_is_enlarged_from_json_and_from_a_form_and_charged_once_each(server: Server) -> None:
    before = charges(server)
    with server.http() as client:
        (card,) = [each for each in client.get("/v1/models").json()["data"] if each["id"] == MODEL]
        by_json = client.post(PATH, json={"model": MODEL, "image": uri(), "scale": 2, "seed": 3}).json()
        form = {"model": MODEL, "scale": "2x", "seed": "3", "output_format": "webp"}
        by_form = client.post(PATH, data=form, files={"image": image()}).json()
    assert "upscale" in card["supports"]
    assert (by_json["size"], by_json["parameters"]["scale"], by_json["parameters"]["seed"]) == ("602x400", 2, 3)
    one, other = opened(by_json), opened(by_form)
    assert (one.size, one.format, other.size, other.format) == ((602, 400), "PNG", (602, 400), "WEBP")
    assert np.abs(np.asarray(one.convert("RGB")).astype(int) - np.asarray(other.convert("RGB"))).max() <= 1
    assert np.ptp(np.asarray(one)) > 0
    assert charges(server) == before + 2


def test_it_runs_in_the_background_and_its_retry_is_charged_once(server: Server) -> None:
    before = charges(server)
    body = {"model": MODEL, "image": uri(), "background": True}
    with server.http() as client:
        started = [client.post(PATH, json=body, headers={"Idempotency-Key": "one"}) for _ in range(2)]
        assert [each.status_code for each in started] == [202, 202]
        (job,) = {each.json()["id"] for each in started}
        state = client.get(f"/v1/images/jobs/{job}").json()
        while state["state"] in {"queued", "running"}:
            state = client.get(f"/v1/images/jobs/{job}").json()
    assert (state["state"], state["result"]["size"]) == ("succeeded", "602x400")
    assert charges(server) == before + 1


def test_an_upscaler_is_a_model_of_its_own(server: Server) -> None:
    """Inspected, added, tried, announced, priced by its own entry, and refused where it would have to draw."""
    make_upscaler(server.weights / "4x-tiny.safetensors")
    with server.http(server.admin_key) as operator, server.http() as client:
        found = operator.post("/admin/checkpoints/inspect", json={"checkpoint": "4x-tiny.safetensors"}).json()
        body = {"checkpoint": "4x-tiny.safetensors", "name": "sharp", "family": "alpha", "price": "0.03"}
        added = operator.post("/admin/checkpoints/add", json=body)
        reloaded = operator.post("/admin/reload", json={})
        card = client.get("/v1/models/sharp").json()
        before = charges(server)
        answer = client.post(PATH, json={"model": "sharp", "image": uri(301, 200), "scale": 4}).json()
        to_tier = client.post(PATH, json={"model": "sharp", "image": uri(301, 200), "scale": "1k"}).json()
        drawn = client.post("/v1/images/generations", json={"model": "sharp", "prompt": "a boat"})
        assert operator.post("/admin/checkpoints/remove", json={"model": "sharp"}).status_code == 200
        assert operator.post("/admin/reload", json={}).status_code == 200
    assert (found["problems"], found["supports"], found["class_name"]) == ([], ["upscale"], "RRDBNet")
    assert (added.status_code, reloaded.status_code) == (200, 200), (added.text, reloaded.text)
    assert (card["supports"], card["price"], card["architecture"]["input_modalities"]) == (
        ["upscale"],
        "0.03",
        ["image"],
    )
    assert answer["size"] == "1204x800"
    assert (to_tier["size"], to_tier["parameters"]["scale"]) == ("1256x834", "1K")
    assert opened(to_tier).size == (1256, 834)
    assert not {"steps", "guidance", "negative_prompt"} & answer["parameters"].keys()
    plain = Image.open(io.BytesIO(image(301, 200))).resize((1204, 800))
    assert np.abs(np.asarray(opened(answer)).astype(int) - np.asarray(plain)).mean() < 12
    assert (drawn.status_code, drawn.json()["error"]["param"]) == (400, "model")
    assert "/v1/images/upscale" in drawn.json()["error"]["message"]
    assert charges(server) == before + 2


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_a_file_is_enlarged_again_from_its_own_metadata(server: Server, tmp_path: Path, format_: str) -> None:
    before = charges(server)
    body = {"model": MODEL, "image": uri(), "scale": 2, "output_format": format_, "response_format": "b64_json"}
    with server.http() as client:
        answer = client.post(PATH, json=body).json()
    (tmp_path / "small").write_bytes(image())
    (file := tmp_path / "large").write_bytes(base64.b64decode(answer["data"][0]["b64_json"]))
    refused = server.darkroom("reproduce", str(file))
    assert "--image" in refused.stderr
    assert charges(server) == before + 1
    again = server.darkroom("reproduce", str(file), "--image", str(tmp_path / "small"))
    assert again.stdout.splitlines() == ["The same, bit for bit: all 240,800 pixels."], again.stderr
    assert charges(server) == before + 2


@pytest.mark.nightly
def test_the_console_enlarges_an_image_of_the_gallery(server: Server, browser: str) -> None:
    with server.http() as client:
        client.post("/v1/images/generations", json={"model": MODEL, "prompt": "a red boat", "size": "256x256"})
    command = ["node", "console/upscale.mjs", browser, server.base, server.key, server.admin_key]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scale": 2}, "image"),
        ({"image": uri(), "scale": 3}, "scale"),
        ({"image": uri(1200, 900), "scale": 4}, "scale"),
        ({"image": uri(40, 40), "scale": 2}, "scale"),
        ({"image": uri(), "scale": "8K"}, "scale"),
        ({"image": uri(1200, 900), "scale": "1K"}, "scale"),
        ({"image": "data:image/png;base64,AAAA"}, "image"),
        ({"image": uri(), "model": "nobody"}, "model"),
        ({"image": uri(), "output_compression": 50}, "output_compression"),
        ({"image": uri(), "mask": uri()}, "mask"),
        ({"images": [uri()]}, "images"),
        ({"image": uri(), "background": "transparent"}, "background"),
    ],
)
def test_what_can_not_be_enlarged_is_refused_by_its_field_and_not_charged(
    server: Server, body: dict[str, Any], param: str
) -> None:
    before = charges(server)
    with server.http() as client:
        refused = client.post(PATH, json={"model": MODEL, **body})
    assert (refused.status_code in {400, 404}, refused.json()["error"]["param"]) == (True, param), refused.text
    assert charges(server) == before
    assert_clean(server)


def test_a_form_with_another_file_is_refused_by_its_name(server: Server) -> None:
    file = base64.b64decode(uri().partition(",")[2])
    with server.http() as client:
        refused = client.post(PATH, data={"model": MODEL}, files={"image": file, "mask": file})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "mask")
    assert "all of it is enlarged" in error["message"]


@pytest.mark.parametrize("background", ["auto", "opaque"])
def test_a_background_that_every_result_has_may_be_asked_for(server: Server, background: str) -> None:
    with server.http() as client:
        drawn = client.post(PATH, json={"model": MODEL, "image": uri(), "background": background})
    assert (drawn.status_code, drawn.json()["background"]) == (200, "opaque"), drawn.text
