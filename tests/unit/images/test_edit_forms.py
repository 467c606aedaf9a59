"""Edits as browsers, no-code tools and gateways send them: empty parts, texts beside files, words in capitals."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pipelines.protocol.images import ImageJob
from tests.support.in_process import InProcess, in_process, png

EDITS = "/v1/images/edits"
FORM = {"prompt": "blue", "size": "256x256"}
FILE = ("a.png", png(), "image/png")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        yield app


def job(running: InProcess) -> ImageJob:
    last: ImageJob = running.workers.jobs[-1]
    return last


async def edit(running: InProcess, fields: dict[str, str], *files: tuple[str, Any]) -> Any:
    return await running.client.post(EDITS, data={**FORM, **fields}, files=[("image", FILE), *files])


async def test_empty_parts_are_absent(running: InProcess) -> None:
    names = ["n", "quality", "seed", "output_format", "stream", "mask", "background", "response_format", "model"]
    empty = dict.fromkeys([*names, "partial_images", "moderation", "image", "loras", "controls[x]"], "")
    unnamed = ("", b"", "application/octet-stream")
    answer = await edit(running, empty, ("mask", unnamed), ("image[]", unnamed))
    assert answer.status_code == 200, answer.text
    assert (len(job(running).references), job(running).mask) == (1, None)
    assert "x-darkroom-ignored" not in answer.headers


async def test_an_empty_file_with_a_name_is_absent_and_named(running: InProcess) -> None:
    answer = await edit(running, {}, ("mask", ("mask.png", b"", "image/png")))
    assert answer.status_code == 200, answer.text
    assert (answer.headers["x-darkroom-ignored"], job(running).mask) == ("mask", None)


async def test_an_edit_of_an_empty_file_alone_is_refused(running: InProcess) -> None:
    before = len(running.workers.jobs)
    refused = await running.client.post(EDITS, data=FORM, files={"image": ("a.png", b"", "image/png")})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "image[0]")
    assert "empty" in refused.json()["error"]["message"]
    assert len(running.workers.jobs) == before


@pytest.mark.parametrize("name", ["image", "image[]", "images", "image[0]"])
async def test_a_text_beside_the_file_that_it_names_is_ignored(running: InProcess, name: str) -> None:
    answer = await edit(running, {name: "a.png", "mask": "b.png"}, ("mask", FILE))
    assert answer.status_code == 200, answer.text
    assert (len(job(running).references), job(running).mask is None) == (1, False)
    assert set(answer.headers["x-darkroom-ignored"].split(", ")) == {name, "mask"}


@pytest.mark.parametrize("name", ["image", "mask", "controls[depth]"])
async def test_a_text_without_a_file_is_refused(running: InProcess, name: str) -> None:
    files = [] if name == "image" else [("image", FILE)]
    content = {"data": {**FORM, name: "a.png"}, "files": files or {"other": FILE}}
    refused = await running.client.post(EDITS, **content)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == f"'{name}' must be a file part here, not text."


@pytest.mark.parametrize("names", [["image1", "image2"], ["file"], ["image_1", "images[]"], ["image[0]", "file[]"]])
async def test_files_have_the_names_that_clients_give_them(running: InProcess, names: list[str]) -> None:
    answer = await running.client.post(EDITS, data=FORM, files=[(name, FILE) for name in names])
    assert answer.status_code == 200, answer.text
    assert len(job(running).references) == len(names)
    assert "x-darkroom-ignored" not in answer.headers


@pytest.mark.parametrize("name", ["mask", "mask[]", "mask[0]", "masks"])
async def test_a_mask_has_the_names_that_an_image_has(running: InProcess, name: str) -> None:
    answer = await edit(running, {}, (name, FILE))
    assert (answer.status_code, job(running).mask is None) == (200, False), answer.text


async def test_a_second_mask_is_refused(running: InProcess) -> None:
    refused = await edit(running, {}, ("mask", FILE), ("mask[]", FILE))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mask")


@pytest.mark.parametrize("name", ["mask_image", "reference", "depth"])
async def test_a_file_beside_the_image_that_nothing_reads_is_refused(running: InProcess, name: str) -> None:
    before = len(running.workers.jobs)
    refused = await edit(running, {}, (name, FILE))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert "'mask'" in refused.json()["error"]["message"]
    assert len(running.workers.jobs) == before


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"output_format": "jpg"}, "jpeg"),
        ({"output_format": "JPEG"}, "jpeg"),
        ({"output_format": "PNG"}, "png"),
        ({"output_format": "image/webp"}, "webp"),
        ({"quality": "HIGH", "response_format": "URL", "background": "Auto", "moderation": "LOW"}, "png"),
        ({"long_prompt": "Tell", "batch": "EXACT"}, "png"),
        ({"size": " 256 X 256 "}, "png"),
        ({"size": "256×256"}, "png"),
    ],
)
async def test_words_are_read_as_people_write_them(running: InProcess, fields: dict[str, str], kind: str) -> None:
    answer = await edit(running, fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output_format"] == kind
    body = {"prompt": "x", "size": "256x256", **fields}
    generated = await running.client.post("/v1/images/generations", json=body)
    assert (generated.status_code, generated.json()["output_format"]) == (200, kind)


async def test_the_image_tool_reads_them_too(running: InProcess) -> None:
    tool = {"type": "image_generation", "quality": "LOW", "output_format": "JPG", "model": "gpt-image-2"}
    body = {"model": "gpt-4o", "input": "x", "tools": [tool], "tool_choice": {"type": "image_generation"}}
    answer = await running.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    call = next(item for item in answer.json()["output"] if item["type"] == "image_generation_call")
    image_job = next(each for each in reversed(running.workers.jobs) if isinstance(each, ImageJob))
    assert (call["output_format"], image_job.sampling.steps) == ("jpeg", 14)
