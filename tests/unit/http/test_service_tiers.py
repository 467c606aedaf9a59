"""The tier in which a call is served: what its body asks for and its key may have, in job, answer and queue."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.accounts.keys import create_key
from server.data_folders import REPOSITORY
from tests.support.in_process import InProcess, in_process
from tests.support.scripted_upstream import scripted_upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")
IMAGES, CHAT, RESPONSES = "/v1/images/generations", "/v1/chat/completions", "/v1/responses"
ALPHA, HELLO = "alpha-image-2-count", [{"role": "user", "content": "a boat"}]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "image": (IMAGES, {"model": ALPHA, "prompt": "a boat", "size": "256x256"}),
    "chat": (CHAT, {"model": "starter-chat", "messages": HELLO}),
    "chat that draws": (CHAT, {"model": ALPHA, "messages": HELLO, "size": "256x256"}),
    "response": (RESPONSES, {"model": "starter-chat", "input": "a boat"}),
    "image tool": (
        RESPONSES,
        {"model": "starter-chat", "input": "a boat", "tools": [{"type": "image_generation"}], "max_tool_calls": 1},
    ),
}
GROUPS = frozenset({"alpha-image-per-call", "beta-image-per-call", "chat"})
ADMIN = {"Authorization": "Bearer admin"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home: Path = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    async with in_process(home) as app:
        yield app


async def with_right(running: InProcess) -> dict[str, str]:
    body = {"name": "first", "groups": [*GROUPS, "priority"]}
    created = await running.client.post("/admin/keys", json=body, headers=ADMIN)
    assert created.status_code in (200, 201), created.text
    return {"Authorization": f"Bearer {created.json()['secret']}"}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("asked", "right", "served"),
    [
        ("flex", False, "flex"),
        ("priority", False, "default"),
        ("priority", True, "priority"),
        ("auto", True, "default"),
    ],
)
async def test_the_answer_and_the_jobs_have_the_tier(
    running: InProcess, name: str, asked: str, right: bool, served: str
) -> None:
    path, body = CALLS[name]
    headers = await with_right(running) if right else {}
    running.workers.jobs.clear()
    running.workers.call = ("image_generation", '{"prompt": "a boat"}') if name == "image tool" else None
    try:
        answer = await running.client.post(path, json={**body, "service_tier": asked}, headers=headers)
    finally:
        running.workers.call = None
    assert (answer.status_code, answer.json()["service_tier"]) == (200, served), answer.text
    assert {job.tier for job in running.workers.jobs} == {served}
    assert len(running.workers.jobs) == (3 if name == "image tool" else 1)


@pytest.mark.parametrize("name", ["image", "chat", "response"])
async def test_the_queue_shows_it(running: InProcess, name: str) -> None:
    path, body = CALLS[name]
    running.workers.gate.clear()
    call = asyncio.create_task(running.client.post(path, json={**body, "service_tier": "flex"}))
    try:
        async with asyncio.timeout(15):
            while True:
                jobs = (await running.client.get("/v1/darkroom/jobs")).json()["data"]
                if [job["service_tier"] for job in jobs] == ["flex"]:
                    break  # an image is listed before it is queued
                await asyncio.sleep(0.01)
    finally:
        running.workers.gate.set()
    assert (await call).status_code == 200


async def test_no_key_has_the_right_unless_it_is_given(running: InProcess) -> None:
    created = (await running.client.post("/admin/keys", json={"name": "all"}, headers=ADMIN)).json()
    assert set(created["groups"]) == GROUPS
    wrong = await running.client.post("/admin/keys", json={"name": "x", "groups": ["prior"]}, headers=ADMIN)
    assert "There are: alpha-image-per-call, beta-image-per-call, chat, priority." in wrong.json()["error"]["message"]


async def test_another_server_is_asked_for_what_the_key_may_have(tmp_path: Path) -> None:
    with scripted_upstream({}, "Hello") as (url, bodies):
        configs = tmp_path / "model_configs"
        await asyncio.to_thread(_copy_catalog, configs, url)
        async with in_process(tmp_path / "home", configs=configs) as running:
            database = running.services.stores.database
            _, secret = await asyncio.to_thread(create_key, database, "first", GROUPS | {"priority"})
            right = {"Authorization": f"Bearer {secret}"}
            for asked, headers in (("flex", {}), ("priority", {}), ("priority", right), ("fast", {}), (None, right)):
                chat = {"model": "large", "messages": HELLO, "service_tier": asked}
                response = {"model": "large", "input": "Hello", "service_tier": asked}
                assert (await running.client.post(CHAT, json=chat, headers=headers)).status_code == 200
                assert (await running.client.post(RESPONSES, json=response, headers=headers)).status_code == 200
    sent = [body.get("service_tier") for body in bodies]
    assert sent == ["flex", "flex", None, None, "priority", "priority", None, None, None, None]


def _copy_catalog(configs: Path, url: str) -> None:
    shutil.copytree(REPOSITORY / "model_configs", configs)
    (configs / "chat.toml").write_text(f'[[models]]\nname = "large"\nupstream = "{url}"\n')
