"""ControlNets and IP-Adapters of a request: what reaches the engine, and what is refused by field before any hold."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import Capabilities
from server.catalog.images import Catalog, CatalogError, load_catalog
from server.data_folders import REPOSITORY
from server.errors import BadRequest
from server.flows.images.controls import ControlRequest, check_controls
from server.flows.images.enlarging import can_enlarge
from server.flows.references import Reference
from tests.support.in_process import InProcess, in_process, png

TABLES = """
[[controlnets]]
name = "edges"
checkpoint = "controlnet-canny"
map = "canny"
strength = 0.8

[[controlnets]]
name = "depth"
checkpoint = "controlnet-union"
map = "depth"
mode = 2

[[ip_adapters]]
name = "style"
checkpoint = "ip-adapter.safetensors"
image_encoder = "clip-vit-h"

[[ip_adapters]]
name = "face"
checkpoint = "ip-adapter-face.safetensors"
image_encoder = "another-encoder"
"""
URI = "data:image/png;base64," + base64.b64encode(png(96, 64)).decode()
MODEL = "alpha-image-2-count"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path, more_of_alpha=TABLES) as running:
        yield running


async def test_maps_and_strengths_reach_the_engine_and_the_answer(app: InProcess) -> None:
    controls = {"style": {"image": URI, "strength": 0.3}, "edges": URI}
    body = {"prompt": "a boat", "model": MODEL, "controls": controls}
    answer = await app.client.post("/v1/images/generations", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["parameters"]["controls"] == {"edges": 0.8, "style": 0.3}
    job = app.workers.jobs[-1]
    assert [(each.name, each.strength) for each in job.controls] == [("edges", 0.8), ("style", 0.3)]
    assert [(each.image.width_px, each.image.height_px) for each in job.controls] == [(96, 64)] * 2
    assert job.width_px > job.height_px, "without a size, an image follows its map"


async def test_forms_have_maps_as_files(app: InProcess) -> None:
    files = {"image": png(), "controls[edges]": png(96, 64), "controls[depth]": png()}
    data = {"prompt": "a boat", "model": MODEL, "controls": json.dumps({"edges": {"strength": 0.5}})}
    answer = await app.client.post("/v1/images/edits", files=files, data=data)
    assert answer.status_code == 200, answer.text
    assert "x-darkroom-ignored" not in answer.headers
    controls = app.workers.jobs[-1].controls
    assert [(each.name, each.strength) for each in controls] == [("edges", 0.5), ("depth", 1.0)]


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ({"pose": URI}, "has no control 'pose'. Controls: edges, depth, style, face."),
        ({"edges": {"strength": 0.5}}, "Missing required parameter: 'controls[edges]'"),
        ({"edges": {"image": URI, "strength": 3}}, "Expected a value <= 2.0"),
        ({"edges": "data:image/png;base64,AAAA"}, "controls[edges]"),
        ({"style": URI, "face": URI}, "The controls face, style have different image encoders"),
        ({str(number): URI for number in range(5)}, "at most 4"),
        ([URI], "controls"),
    ],
)
async def test_what_can_not_be_drawn_is_refused_by_field_before_any_hold(
    app: InProcess, controls: Any, message: str
) -> None:
    body = {"prompt": "a boat", "model": MODEL, "controls": controls}
    answer = await app.client.post("/v1/images/generations", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith("controls")
    assert message in error["message"]
    assert app.workers.jobs == []


async def test_models_without_controls_say_so(app: InProcess) -> None:
    body = {"prompt": "a boat", "model": "beta-3.1-flash-image-count", "controls": {"edges": URI}}
    models = (await app.client.get("/v1/models")).json()["data"]
    body["model"] = next(model["id"] for model in models if model["id"].startswith("beta"))
    answer = await app.client.post("/v1/images/generations", json=body)
    assert answer.status_code == 400
    assert "takes none: leave 'controls' out" in answer.json()["error"]["message"]
    alpha = next(model for model in models if model["id"] == MODEL)
    assert [control["name"] for control in alpha["controls"]] == ["edges", "depth", "style", "face"]
    assert alpha["controls"][0] == {
        "name": "edges", "kind": "controlnet", "map": "canny", "strength": 0.8, "works_with": [],
    }  # fmt: skip


async def test_other_maps_are_another_call_for_retries(app: InProcess) -> None:
    body = {"prompt": "a boat", "model": MODEL, "controls": {"edges": URI}}
    headers = {"Idempotency-Key": "one"}
    assert (await app.client.post("/v1/images/generations", json=body, headers=headers)).status_code == 200
    other = "data:image/png;base64," + base64.b64encode(png(64, 64)).decode()
    for controls in ({"edges": other}, {"edges": {"image": URI, "strength": 0.1}}, {"depth": URI}):
        answer = await app.client.post("/v1/images/generations", json={**body, "controls": controls}, headers=headers)
        assert answer.status_code == 422
    assert (await app.client.post("/v1/images/generations", json=body, headers=headers)).status_code == 200
    assert len(app.workers.jobs) == 1


@pytest.mark.parametrize(
    ("found", "names", "way", "message"),
    [
        ({"unsupported_controls": ("edges",)}, ["edges"], "text", "has no control 'edges'"),
        ({"controlnets_at_once": 1}, ["edges", "depth"], "text", "one ControlNet at a time: send one of edges, depth"),
        ({"controlnets_with": ("text", "mask")}, ["edges"], "image", "with reference images, but with a prompt alone"),
        ({"ip_adapters_with": ()}, ["style"], "text", "but with nothing that it draws"),
    ],
)
def test_what_warmup_withdrew_is_refused(
    tmp_path: Path, found: dict[str, Any], names: list[str], way: Any, message: str
) -> None:
    for file in (REPOSITORY / "model_configs").glob("*.toml"):
        more = TABLES if file.name == "alpha-image-2.toml" else ""
        (tmp_path / file.name).write_text(file.read_text() + more)
    model = load_catalog(tmp_path, tmp_path).models[MODEL]
    every: Any = ("text", "image", "mask")
    capabilities = Capabilities(
        text=True, references=1, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True,
        controlnets_with=every, controlnets_at_once=2, ip_adapters_with=every,
    )  # fmt: skip
    requested = [ControlRequest(name, Reference(f"controls[{name}]", URI)) for name in names]
    check_controls(requested, way, model, capabilities)
    with pytest.raises(BadRequest, match=message) as refused:
        check_controls(requested, way, model, replace(capabilities, **found))
    assert refused.value.param == "controls"


def catalog_with(folder: Path, more: str) -> Catalog:
    for file in (REPOSITORY / "model_configs").glob("*.toml"):
        (folder / file.name).write_text(file.read_text() + (more if file.name == "alpha-image-2.toml" else ""))
    return load_catalog(folder, folder)


def test_t2i_adapters_stand_beside_controlnets_and_not_with_them(tmp_path: Path) -> None:
    table = '[[t2i_adapters]]\nname = "sketch"\ncheckpoint = "t2i"\nmap = "sketch"\n'
    model = catalog_with(tmp_path, f"{TABLES}\n{table}").models[MODEL]
    found = Capabilities(
        True, 1, True, True, True, True, True, controlnets_with=("text",), controlnets_at_once=2,
        t2i_adapters_with=("text",), t2i_adapters_at_once=1,
    )  # fmt: skip
    sketch, edges = (ControlRequest(name, Reference(f"controls[{name}]", URI)) for name in ("sketch", "edges"))
    check_controls([sketch], "text", model, found)
    with pytest.raises(BadRequest, match="do not work together: send edges or sketch"):
        check_controls([sketch, edges], "text", model, found)
    with pytest.raises(BadRequest, match="does not work with reference images, but with a prompt alone"):
        check_controls([sketch], "image", model, found)


def test_a_map_of_the_checkpoints_own_is_asked_for_by_name(tmp_path: Path) -> None:
    for file in (REPOSITORY / "model_configs").glob("*.toml"):
        text = file.read_text()
        if file.name == "alpha-image-2.toml":
            text = text.replace("conditioning", 'control_map = "canny"\nconditioning', 1)
        (tmp_path / file.name).write_text(text)
    model = load_catalog(tmp_path, tmp_path).models[MODEL]
    found = Capabilities(True, 1, False, True, True, True, True)
    with pytest.raises(
        BadRequest, match="draws from a map with every call: send it as 'canny' in 'controls'"
    ) as refused:
        check_controls([], "text", model, found)
    assert (refused.value.param, refused.value.code) == ("controls", "missing_required_parameter")
    canny = ControlRequest("canny", Reference("controls[canny]", URI))
    check_controls([canny], "image", model, found)
    assert not can_enlarge(model, found)
    with pytest.raises(BadRequest, match="with a mask"):
        check_controls([canny], "mask", model, found)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('name = "depth"', 'name = "edges"', "'edges' is there twice"),
        ('checkpoint = "ip-adapter.safetensors"', 'checkpoint = "ip-adapter.bin"', "ip_adapters"),
        ("[runtime]\n", '[runtime]\noffload = "model"\n', "only 'encoders' works"),
        ("[runtime]\n", "[runtime]\ncompile = true\n", "would be compiled anew"),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, before: str, after: str, message: str) -> None:
    for file in (REPOSITORY / "model_configs").glob("*.toml"):
        text = file.read_text()
        if file.name == "alpha-image-2.toml":
            text = (text + TABLES).replace(before, after, 1)
        (tmp_path / file.name).write_text(text)
    with pytest.raises(CatalogError, match=message):
        load_catalog(tmp_path, tmp_path)


def test_equal_files_and_other_controls_are_other_weights(tmp_path: Path) -> None:
    for file in (REPOSITORY / "model_configs").glob("*.toml"):
        more = TABLES if file.name == "alpha-image-2.toml" else ""
        (tmp_path / file.name).write_text(file.read_text() + more)
    spec: CheckpointSpec = load_catalog(tmp_path, tmp_path).models[MODEL].checkpoint
    assert [(each.name, each.kind, each.mode) for each in spec.controls] == [
        ("edges", "controlnet", None), ("depth", "controlnet", 2), ("style", "ip-adapter", None),
        ("face", "ip-adapter", None),
    ]  # fmt: skip
