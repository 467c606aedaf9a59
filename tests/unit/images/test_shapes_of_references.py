"""Whatever has been sent is drawn in its own shape, on every route that takes an image and no size."""

import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pipelines.protocol.images import ImageJob
from server.catalog.sizes import MAX_AREA_PX
from tests.support.in_process import InProcess, in_process, png

MODEL = "alpha-image-2-count"
SHAPES = [  # screens, phones, pages, photos, scans, banners
    (1280, 800), (1440, 900), (2560, 1600), (1366, 768), (1920, 1080), (3440, 1440), (1920, 1200), (1024, 768),
    (1170, 2532), (1179, 2556), (1080, 2340), (1080, 2400), (750, 1334), (1125, 2436), (828, 1792), (390, 844),
    (1240, 1754), (2480, 3508), (1654, 2339), (850, 1100), (1275, 1650), (413, 531), (354, 472), (600, 600),
    (4032, 3024), (3024, 4032), (6000, 4000), (3000, 2400), (2000, 2800), (1000, 667), (1000, 900), (604, 644),
    (1500, 500), (1584, 396), (820, 312), (2000, 300), (300, 2000), (97, 41), (16, 16), (999, 1001),
]  # fmt: skip
Body = Callable[[str], dict[str, Any]]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        yield app


def chat(uri: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "make it blue"}, {"type": "image_url", "image_url": {"url": uri}}]
    return {"model": MODEL, "messages": [{"role": "user", "content": parts}]}


def google(uri: str) -> dict[str, Any]:
    parts = [{"text": "make it blue"}, {"inlineData": {"mimeType": "image/png", "data": uri.partition(",")[2]}}]
    return {"contents": [{"role": "user", "parts": parts}]}


def tool(uri: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": "make it blue"}, {"type": "input_image", "image_url": uri}]
    return {
        "input": [{"role": "user", "content": parts}],
        "tools": [{"type": "image_generation", "model": MODEL}],
        "tool_choice": {"type": "image_generation"},
    }


ROUTES: dict[str, tuple[str, Body | None]] = {
    "generations": ("/v1/images/generations", lambda uri: {"prompt": "make it blue", "model": MODEL, "image": [uri]}),
    "edits": ("/v1/images/edits", None),
    "chat": ("/v1/chat/completions", chat),
    "gemini": (f"/v1beta/models/{MODEL}:generateContent", google),
    "responses": ("/v1/responses", tool),
}


async def ask(running: InProcess, route: str, file: bytes) -> httpx.Response:
    path, body = ROUTES[route]
    if body is None:
        form = {"prompt": "make it blue", "model": MODEL}
        return await running.client.post(path, data=form, files={"image": ("a.png", file, "image/png")})
    return await running.client.post(path, json=body("data:image/png;base64," + base64.b64encode(file).decode()))


SOME = [(1280, 800), (390, 844), (413, 531), (820, 312), (97, 41)]


@pytest.mark.parametrize("shapes", [SOME, pytest.param(SHAPES, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("route", ROUTES)
async def test_every_shape_is_drawn_without_a_size(
    running: InProcess, route: str, shapes: list[tuple[int, int]]
) -> None:
    running.workers.call = ("image_generation", '{"prompt": "a blue boat"}')
    for width, height in shapes:
        answer = await ask(running, route, png(width, height))
        assert answer.status_code == 200, (width, height, answer.text)
        job = next(job for job in reversed(running.workers.jobs) if isinstance(job, ImageJob))
        assert job.references, (width, height)
        assert job.width_px * job.height_px <= MAX_AREA_PX["1K"]
        shape = job.width_px / job.height_px / (width / height)
        if "cut_from" in job.metadata:
            assert job.metadata["cut_from"] == f"{width}x{height}"
            assert max(width, height) > 2.3 * min(width, height)
        else:
            assert abs(shape - 1) < 0.08, (width, height)
