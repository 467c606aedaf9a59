"""Images that the engine could not draw, and those that could not end in time, on every way to ask for one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import func, select

from pipelines.protocol.images import Failed
from pipelines.protocol.messages import Capabilities
from server.accounts.tables import EntryRow
from tests.support.in_process import InProcess, in_process, png

pytestmark = pytest.mark.asyncio(loop_scope="module")
DRAW, MODEL = "/v1/images/generations", "beta-3-pro-image-count"
WHY = "What the model drew is not an image. Nothing was charged. Try it without the adapter 'diverged'."
FAILED = Failed("invalid_picture", WHY, "a traceback", "loras")
BODY = {"model": MODEL, "prompt": "a boat", "size": "256x256"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a boat"}]}
TOOL = {"model": "starter-chat", "input": "a boat", "tools": [{"type": "image_generation", "model": MODEL}]}
GOOGLE = {
    "contents": [{"role": "user", "parts": [{"text": "a boat"}]}],
    "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]},
}
CAPABILITIES = Capabilities(
    text=True, references=16, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def failing(app: InProcess) -> Iterator[InProcess]:
    app.workers.image_failure = FAILED
    yield app
    app.workers.image_failure = None


async def entries(app: InProcess) -> int:
    """Charges in the ledger."""
    database = app.services.stores.database

    def count() -> int:
        with database.read() as session:
            return session.scalar(select(func.count()).select_from(EntryRow)) or 0

    return await database.in_reader(count)


@pytest.mark.parametrize("edit", [False, True])
async def test_an_image_of_no_numbers_is_500_uncharged_and_not_sent_again(failing: InProcess, edit: bool) -> None:
    before = await entries(failing)
    if edit:
        files = {"image": ("boat.png", png(256, 256), "image/png")}
        answer = await failing.client.post("/v1/images/edits", data=BODY, files=files)
    else:
        answer = await failing.client.post(DRAW, json=BODY)
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false", "an SDK would draw it twice more"
    assert answer.json()["error"] == {
        "message": WHY, "type": "server_error", "param": "loras", "code": "invalid_picture",
    }  # fmt: skip
    assert await entries(failing) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (DRAW, {**BODY, "stream": True}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        (f"/v1beta/models/{MODEL}:generateContent", GOOGLE),
    ],
)
async def test_other_ways_to_ask_for_an_image_say_the_same(failing: InProcess, path: str, body: Any) -> None:
    before = await entries(failing)
    answer = await failing.client.post(path, json=body)
    assert WHY in answer.text
    assert "invalid_picture" in answer.text.lower()
    assert answer.status_code == (200 if "event-stream" in answer.headers["content-type"] else 500)
    assert await entries(failing) == before


async def test_a_job_in_the_background_fails_with_it(failing: InProcess) -> None:
    queued = await failing.client.post(DRAW, json={**BODY, "background": True})
    path = f"/v1/images/jobs/{queued.headers['x-darkroom-job']}"
    async with asyncio.timeout(60):
        while True:
            state = (await failing.client.get(path)).json()
            if state["state"] not in {"queued", "running"}:
                break
            await asyncio.sleep(0.01)
    assert (state["state"], state["error"]["code"], state["error"]["message"]) == ("failed", "invalid_picture", WHY)


async def test_a_response_with_the_image_tool_fails_with_it(failing: InProcess) -> None:
    failing.workers.call = ("image_generation", '{"prompt": "a boat"}')
    answer = await failing.client.post("/v1/responses", json=TOOL)
    failing.workers.call = None
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, WHY)


@pytest.fixture
def slow(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """A unit of work takes a minute, so that one step of a megapixel does."""
    backlog = app.services.images.calls._creator._running.backlog
    monkeypatch.setattr(backlog, "_warmup_unit_s", lambda _: 60.0)
    monkeypatch.setattr(backlog, "_fastest_s", {})
    return app


@pytest.mark.parametrize("background", [False, True])
async def test_what_cannot_end_in_time_is_refused_before_it_is_held(slow: InProcess, background: bool) -> None:
    """Twice the limit of 900 s, by what warmup took, is 30 steps of a megapixel."""
    drawn, before = len(slow.workers.jobs), await entries(slow)
    body = {**BODY, "size": "1024x1024", "steps": 40, "background": background}
    refused = await slow.client.post(DRAW, json=body, headers={"Idempotency-Key": f"slow {background}"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "exceeds_time_limit", "steps")
    assert "it takes 1258 s of device time or more, and the limit is 900 s" in error["message"]
    assert "Ask for at most 28 steps, or for a smaller size." in error["message"]
    assert "DARKROOM_JOB_TIME_LIMIT_S" in error["message"]
    assert (len(slow.workers.jobs), await entries(slow)) == (drawn, before)
    fewer = await slow.client.post(DRAW, json={**body, "steps": 28, "background": False})
    assert fewer.status_code == 200, fewer.text


async def test_a_prompt_without_an_effect_is_named(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for prompt, named in ((True, None), (False, "prompt")):
        known = replace(CAPABILITIES, prompt=prompt)
        monkeypatch.setattr(app.services.engines.image, "capabilities", lambda _, known=known: known)
        answer = await app.client.post(DRAW, json=BODY)
        assert answer.status_code == 200, answer.text
        assert answer.headers.get("x-darkroom-ignored") == named
