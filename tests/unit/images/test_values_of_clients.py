"""Image calls as clients send them, and answers as they read them: bytes, names of options, JSON at edits."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pipelines.protocol.images import ImageJob
from server.settings import Settings
from tests.support.in_process import InProcess, in_process, png

PATH, EDITS = "/v1/images/generations", "/v1/images/edits"
DATA_URI = "data:image/png;base64," + base64.b64encode(png()).decode()
BETA = "beta-3-pro-image-count"
# What a widely used coding agent's image tool sends, to the letter.
AGENT_GENERATION = {
    "prompt": "a red boat",
    "background": "auto",
    "model": "gpt-image-2",
    "quality": "auto",
    "size": "auto",
}
AGENT_EDIT = {
    "images": [{"image_url": DATA_URI}],
    "prompt": "make it blue",
    "background": "auto",
    "model": "gpt-image-2",
    "quality": "auto",
    "size": "auto",
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home"), json_edits=True, answers_with_bytes=False) as app:
        yield app


def without_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return all(inner is not None and without_nulls(inner) for inner in value.values())
    return all(map(without_nulls, value)) if isinstance(value, list) else True


def job(running: InProcess) -> ImageJob:
    last: ImageJob = running.workers.jobs[-1]
    return last


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, {"url"}),
        ({"model": BETA}, {"url"}),
        ({"model": "dall-e-3"}, {"url"}),
        ({"model": "gpt-image-1"}, {"b64_json"}),
        ({"model": "gpt-image-1-mini"}, {"b64_json"}),
        ({"model": "gpt-image-1", "response_format": "url"}, {"url"}),
        ({"response_format": "url"}, {"url"}),
        ({"response_format": "b64_json"}, {"b64_json"}),
    ],
)
async def test_bytes_are_where_clients_of_that_name_read_them(
    running: InProcess, fields: dict[str, Any], keys: set[str]
) -> None:
    answer = await running.client.post(PATH, json={"prompt": "a boat", "size": "256x256", **fields})
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("}\n")
    assert without_nulls(answer.json())
    (image,) = answer.json()["data"]
    assert image.keys() == keys | {"seed"}
    if "b64_json" in keys:
        assert base64.b64decode(image["b64_json"]) == png()
    edited = await running.client.post(
        EDITS, data={"prompt": "blue", "size": "256x256", **fields}, files={"image": png()}
    )
    assert edited.json()["data"][0].keys() == keys | {"seed"}
    shown = await running.client.get(f"/v1/images/jobs/{answer.headers['x-darkroom-job']}")
    assert shown.json()["result"] == answer.json()


async def test_answers_have_urls_alone_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    assert not Settings(home=tmp_path).answers_with_bytes


async def test_an_operator_can_have_answers_with_both(tmp_path: Path) -> None:
    async with in_process(tmp_path, answers_with_bytes=True) as running:
        own, alias = [
            (await running.client.post(PATH, json={"prompt": "x", "model": name})).json()["data"][0]
            for name in ("alpha-image-2-count", "gpt-image-2")
        ]
    assert (own.keys(), alias.keys()) == ({"url", "b64_json", "seed"}, {"b64_json", "seed"})


async def test_a_replay_whose_file_is_gone_says_so(running: InProcess) -> None:
    body, headers = {"prompt": "x", "size": "256x256"}, {"Idempotency-Key": "gone"}
    await running.client.post(PATH, json=body, headers=headers)
    for file in running.services.settings.results.rglob("*.png"):
        file.unlink()
    again = await running.client.post(PATH, json=body, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (500, "picture_missing")


@pytest.mark.parametrize(("path", "body"), [(PATH, AGENT_GENERATION), (EDITS, AGENT_EDIT)])
async def test_a_coding_agents_image_tool_gets_its_bytes(running: InProcess, path: str, body: dict[str, Any]) -> None:
    answer = await running.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert isinstance(answer.json()["created"], int)
    assert [base64.b64decode(item["b64_json"]) for item in answer.json()["data"]] == [png()]
    assert len(job(running).references) == ("images" in body)


async def test_json_edits_are_a_setting(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running:
        refused = await running.client.post(EDITS, json=AGENT_EDIT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "multipart/form-data" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"images": []}, "missing_required_parameter", "images"),
        ({"images": None}, "missing_required_parameter", "images"),
        ({"images": [{"file_id": "file-1"}]}, "invalid_value", "images[0]"),
        ({"images": [{"path": "x"}]}, "invalid_type", "images[0]"),
        ({"images": [{"image_url": "data:image/png;base64,@@"}]}, "invalid_image_file", "images[0]"),
        ({"image": "data:,x"}, "invalid_parameter_combination", "images"),
    ],
)
async def test_a_bad_json_edit_is_refused_by_field(
    running: InProcess, fields: dict[str, Any], code: str, param: str
) -> None:
    refused = await running.client.post(EDITS, json={**AGENT_EDIT, **fields})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text
    assert refused.json()["error"]["param"] == param


async def test_a_json_edit_takes_a_mask_and_images_by_both_names(running: InProcess) -> None:
    mask = {"image_url": "data:image/png;base64," + base64.b64encode(png(colour="white")).decode()}
    answer = await running.client.post(
        EDITS, json={**AGENT_EDIT, "images": DATA_URI, "image": [DATA_URI], "mask": mask}
    )
    assert answer.status_code == 200, answer.text
    assert job(running).mask is not None
    for field in ("image", "images[]"):
        form = await running.client.post(EDITS, data={"prompt": "x", "size": "256x256"}, files={field: png()})
        assert form.status_code == 200, form.text


@pytest.mark.parametrize(
    ("sent", "steps", "quality"),
    [
        ("low", 14, "low"),
        ("standard", 17, "medium"),
        ("medium", 17, "medium"),
        ("hd", 20, "high"),
        ("auto", 20, "high"),
        ("xhigh", 26, "xhigh"),
        ("max", 32, "max"),
    ],
)
async def test_every_quality_that_clients_send_is_a_number_of_steps(
    running: InProcess, sent: str, steps: int, quality: str
) -> None:
    answer = await running.client.post(PATH, json={"prompt": "x", "quality": sent, "model": "dall-e-3"})
    assert (job(running).sampling.steps, answer.json()["quality"]) == (steps, quality)


async def test_auto_is_no_quality_for_beta_and_any_other_is_refused(running: InProcess) -> None:
    accepted = await running.client.post(PATH, json={"prompt": "x", "quality": "auto", "model": BETA})
    assert accepted.status_code == 200
    assert "quality" not in accepted.json()
    for quality in ("hd", "high", "standard"):
        refused = await running.client.post(PATH, json={"prompt": "x", "quality": quality, "model": BETA})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "quality")


async def test_other_servers_names_of_steps_and_guidance_are_used(running: InProcess) -> None:
    fields = {"num_inference_steps": 7, "guidance_scale": 3.5, "true_cfg_scale": 3.5, "guidance": 3.5}
    answer = await running.client.post(PATH, json={"prompt": "x", **fields})
    assert (job(running).sampling.steps, job(running).sampling.guidance) == (7, 3.5)
    assert "x-darkroom-ignored" not in answer.headers
    form = {"prompt": "x", "size": "256x256", "num_inference_steps": "5", "true_cfg_scale": "2.0"}
    await running.client.post(EDITS, data=form, files={"image": png()})
    assert (job(running).sampling.steps, job(running).sampling.guidance) == (5, 2.0)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"steps": 5, "num_inference_steps": 6}, "invalid_parameter_combination", "num_inference_steps"),
        ({"guidance": 1.0, "guidance_scale": 2.0}, "invalid_parameter_combination", "guidance_scale"),
        ({"guidance_scale": 1.0, "true_cfg_scale": 2.0}, "invalid_parameter_combination", "true_cfg_scale"),
        ({"num_inference_steps": 0}, "integer_below_min_value", "num_inference_steps"),
        ({"true_cfg_scale": "high"}, "invalid_type", "true_cfg_scale"),
    ],
)
async def test_names_that_disagree_or_are_out_of_bounds_are_refused(
    running: InProcess, fields: dict[str, Any], code: str, param: str
) -> None:
    before = len(running.workers.jobs)
    refused = await running.client.post(PATH, json={"prompt": "x", **fields})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text
    assert refused.json()["error"]["param"] == param
    assert len(running.workers.jobs) == before


async def test_synonyms_have_one_fingerprint(running: InProcess) -> None:
    headers = {"Idempotency-Key": "synonyms"}
    first = await running.client.post(PATH, json={"prompt": "x", "steps": 7}, headers=headers)
    again = await running.client.post(PATH, json={"prompt": "x", "num_inference_steps": 7}, headers=headers)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"


async def test_known_fields_that_change_nothing_are_named(running: InProcess) -> None:
    fields = {"style": "vivid", "input_fidelity": "high", "user": "u", "safety_identifier": "s", "colour": "red"}
    answer = await running.client.post(PATH, json={"prompt": "x", "moderation": "low", **fields})
    assert answer.headers["x-darkroom-ignored"] == "colour, safety_identifier, style, user, input_fidelity"
    none = await running.client.post(PATH, json={"prompt": "x", "style": None})
    assert "x-darkroom-ignored" not in none.headers
    assert json.loads(none.text)["data"]


@pytest.mark.parametrize(
    "fields",
    [
        {"image_url": "https://example.com/a.png"},
        {"input_image": DATA_URI},
        {"image[]": [DATA_URI]},
        {"reference_images": [{"url": "http://example.com/a"}]},
        {"mask_url": "https://example.com/a.png", "image": DATA_URI},
        {"extra_body": {"image": DATA_URI}},
        {"anything": DATA_URI},
    ],
)
async def test_an_image_in_a_field_that_nothing_reads_is_refused(running: InProcess, fields: dict[str, Any]) -> None:
    before = len(running.workers.jobs)
    refused = await running.client.post(PATH, json={"prompt": "x", **fields})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, next(iter(fields)), "unknown_parameter")
    assert "'image'" in error["message"]
    assert len(running.workers.jobs) == before
    others = {"image_size": "square", "num_images": 1, "homepage": "https://example.com", "image_url": ""}
    drawn = await running.client.post(PATH, json={"prompt": "x", **others})
    assert drawn.status_code == 200


async def test_an_image_may_be_as_in_chats(running: InProcess) -> None:
    for image in ({"url": DATA_URI}, {"type": "image_url", "image_url": {"url": DATA_URI}}):
        answer = await running.client.post(PATH, json={"prompt": "x", "image": [image], "mask": image})
        assert (answer.status_code, len(job(running).references)) == (200, 1), answer.text


async def test_a_field_of_a_form_that_is_nested_too_deep_is_refused(running: InProcess) -> None:
    for field in ("loras", "controls"):
        form = {"prompt": "blue", "size": "256x256", field: "[" * 100_000}
        refused = await running.client.post(EDITS, data=form, files={"image": png()})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text


@pytest.mark.parametrize("send", ["json", "form", "response"])
async def test_a_seed_of_minus_one_is_random(running: InProcess, send: str) -> None:
    seeds = set()
    for _ in range(2):
        if send == "json":
            answer = await running.client.post(PATH, json={"model": BETA, "prompt": "a boat", "seed": -1})
        elif send == "form":
            files = {"image": ("a.png", png(), "image/png")}
            data = {"model": BETA, "prompt": "a boat", "seed": "-1"}
            answer = await running.client.post(EDITS, data=data, files=files)
        else:
            tool = {"type": "image_generation", "model": BETA, "seed": -1}
            body = {"model": "gpt-4o", "input": "a boat", "tools": [tool], "tool_choice": {"type": "image_generation"}}
            answer = await running.client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        seeds.add(job(running).seed)
    assert len(seeds) == 2
    assert min(seeds) >= 0


@pytest.mark.parametrize("seed", [-2, 2**63])
async def test_other_seeds_out_of_range_are_refused(running: InProcess, seed: int) -> None:
    answer = await running.client.post(PATH, json={"model": BETA, "prompt": "a boat", "seed": seed})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seed")


@pytest.mark.parametrize("field", ["image", "images", "mask"])
async def test_base64_alone_is_answered_with_the_form_that_works(running: InProcess, field: str) -> None:
    body = {"model": BETA, "prompt": "a boat", "image": DATA_URI} | {field: DATA_URI.partition(",")[2] * 3}
    if field == "images":
        del body["image"]
    answer = await running.client.post(PATH, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "send it as 'data:image/png;base64,...'" in error["message"]
    assert error["param"].startswith("mask" if field == "mask" else "image")


@pytest.mark.parametrize(("tier", "shown"), [("flex", "flex"), ("FLEX", "flex"), ("priority", "default"), (None, None)])
async def test_a_call_that_may_wait_says_so(running: InProcess, tier: str | None, shown: str | None) -> None:
    running.workers.gate.clear()
    call = asyncio.create_task(running.client.post(PATH, json={"prompt": "x", "service_tier": tier}))
    try:
        async with asyncio.timeout(15):
            while True:
                jobs = (await running.client.get("/v1/darkroom/jobs")).json()["data"]
                if any(each["position"] is not None for each in jobs):
                    break
                await asyncio.sleep(0.01)
        assert [each["service_tier"] for each in jobs] == [shown or "default"]
    finally:
        running.workers.gate.set()
    answer = await call
    assert (answer.json().get("service_tier"), job(running).tier) == (shown, shown or "default")


@pytest.mark.parametrize(
    ("fields", "drawn"),
    [
        ({"width": 768, "height": 512}, {"size": (768, 512)}),
        ({"image_size": {"width": 768, "height": 512}}, {"size": (768, 512)}),
        ({"image_size": "landscape_16_9"}, {"size": (1792, 1024)}),
        ({"aspect_ratio": "21:9"}, {"size": (2016, 864)}),
        ({"cfg_scale": 3.5}, {"guidance": 3.5}),
        ({"num_images": 2}, {"n": 2}),
        ({"batch_size": 2, "n": 2}, {"n": 2}),
        ({"num_outputs": 2}, {"n": 2}),
    ],
)
async def test_other_servers_names_are_read(running: InProcess, fields: dict[str, Any], drawn: dict[str, Any]) -> None:
    answer = await running.client.post(PATH, json={"prompt": "a boat", **fields})
    assert answer.status_code == 200, answer.text
    assert "x-darkroom-ignored" not in answer.headers
    last = job(running)
    found = {"size": (last.width_px, last.height_px), "guidance": last.sampling.guidance, "n": last.n}
    assert {name: found[name] for name in drawn} == drawn


async def test_a_redraws_strength_has_two_other_names_and_may_be_zero(running: InProcess) -> None:
    for name in ("denoising_strength", "prompt_strength", "strength"):
        body = {"prompt": "a boat", "image": [DATA_URI], name: 0}
        assert (await running.client.post(PATH, json=body)).status_code == 200
        assert job(running).sampling.strength == 0


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"width": 768}, "height", "missing_required_parameter"),
        ({"width": 768, "height": 512, "size": "1:1"}, "image_size", "invalid_parameter_combination"),
        ({"width": 768, "height": 512, "image_size": "square"}, "width", "invalid_parameter_combination"),
        ({"num_images": 2, "n": 1}, "num_images", "invalid_parameter_combination"),
        ({"image_size": "2K"}, "size", "invalid_value"),
        ({"sampler_name": "Euler a"}, "sampler_name", "unsupported_parameter"),
        ({"enable_hr": True}, "enable_hr", "unsupported_parameter"),
        ({"image_strength": 0.35}, "image_strength", "unsupported_parameter"),
        ({"clip_skip": 2}, "clip_skip", "unsupported_parameter"),
        ({"inpainting_mask_invert": 1}, "inpainting_mask_invert", "unsupported_parameter"),
        ({"inpaint_full_res": True, "mask_zoom": False}, "inpaint_full_res", "invalid_parameter_combination"),
    ],
)
async def test_what_would_change_the_image_and_is_not_read_is_refused(
    running: InProcess, fields: dict[str, Any], param: str, code: str
) -> None:
    refused = await running.client.post(PATH, json={"prompt": "a boat", **fields})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text
    assert refused.json()["error"]["param"] == param


async def test_options_that_ask_for_nothing_are_taken(running: InProcess) -> None:
    """Also in a form, which has texts alone."""
    asked = {"enable_hr": False, "tiling": False, "restore_faces": False, "clip_skip": None, "batch_size": 1}
    asked |= {"inpainting_mask_invert": 0}
    assert (await running.client.post(PATH, json={"prompt": "a boat", **asked})).status_code == 200
    form = {name: "" if value is None else str(value).lower() for name, value in asked.items()}
    answer = await running.client.post(EDITS, data={"prompt": "a boat", **form}, files={"image": png()})
    assert answer.status_code == 200, answer.text


async def test_fidelity_is_how_little_a_reference_is_redrawn(running: InProcess) -> None:
    body = {"prompt": "a boat", "image": [DATA_URI]}
    for fidelity, strength in (("low", 0.6), ("high", 0.35)):
        answer = await running.client.post(PATH, json={**body, "input_fidelity": fidelity})
        assert (answer.status_code, job(running).sampling.strength) == (200, strength)
        assert "x-darkroom-ignored" not in answer.headers
    await running.client.post(PATH, json={**body, "input_fidelity": "high", "strength": 0.8})
    assert job(running).sampling.strength == 0.8
    answer = await running.client.post(PATH, json={**body, "input_fidelity": "high", "model": BETA})
    assert answer.headers["x-darkroom-ignored"] == "input_fidelity"
