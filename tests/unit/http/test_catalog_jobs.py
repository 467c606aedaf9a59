"""Swaps as jobs, and the moderation policy read again and tried, over HTTP."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.data_folders import REPOSITORY
from tests.support.in_process import InProcess, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = {"Authorization": "Bearer admin"}
POLICY = "[[rules]]\nname = 'no-axes'\ncategory = 'violence'\nterms = ['axe']\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    (home / "policy.toml").write_text(POLICY)
    configs = shutil.copytree(REPOSITORY / "model_configs", home / "catalog")
    async with in_process(home, moderation=home / "policy.toml", configs=configs) as app:
        yield app


async def post(running: InProcess, path: str, body: Any = None, **headers: str) -> httpx.Response:
    return await running.client.post(path, json=body, headers=ADMIN | headers)


async def ended(running: InProcess, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            job: dict[str, Any] = (await running.client.get(f"/admin/swaps/{job_id}", headers=ADMIN)).json()
            if job["state"] != "running":
                return job
            await asyncio.sleep(0.01)


async def test_a_reload_is_a_job_that_ends_and_is_in_the_audit(running: InProcess) -> None:
    answer = await post(running, "/admin/reload", Prefer="respond-async")
    assert (answer.status_code, answer.json()["action"]) == (202, "reload")
    assert answer.headers["location"] == f"/admin/swaps/{answer.json()['id']}"
    job = await ended(running, answer.json()["id"])
    assert (job["state"], job["stage"], job["operator"], job["error"]) == ("succeeded", "done", "admin", None)
    assert job["change"]["changed"] == []
    entries = (await running.client.get("/admin/audit?action=catalog.reload", headers=ADMIN)).json()["data"]
    assert [(entry["target"], entry["operator"]) for entry in entries] == [("catalog", "admin")]
    waited = await post(running, "/admin/reload")
    assert (waited.status_code, waited.json()["object"]) == (200, "catalog.change")
    listed = (await running.client.get("/admin/swaps", headers=ADMIN)).json()["data"]
    assert listed[1] == job


async def test_a_swap_that_fails_says_why_and_changes_nothing(running: InProcess) -> None:
    body = {"model": "gamma", "checkpoint": "none"}
    answer = await post(running, "/admin/swap", body, Prefer="respond-async")
    job = await ended(running, answer.json()["id"])
    assert (job["state"], job["change"], job["error"]["code"]) == ("failed", None, "model_not_found")
    assert (await post(running, "/admin/swap", body)).status_code == 404
    assert (await running.client.get("/admin/audit?action=catalog.swap", headers=ADMIN)).json()["data"] == []
    assert (await running.client.get("/admin/swaps/swap_none", headers=ADMIN)).status_code == 404


async def drawn(running: InProcess, prompt: str) -> int:
    answer = await running.client.post("/v1/images/generations", json={"prompt": prompt, "size": "256x256"})
    return answer.status_code


async def test_a_policy_is_read_again_without_a_restart(running: InProcess) -> None:
    policy = running.services.settings.moderation
    assert policy is not None
    assert [await drawn(running, text) for text in ("an axe", "a saw")] == [400, 200]
    policy.write_text(POLICY.replace("axe", "saw"))
    assert [await drawn(running, text) for text in ("an axe", "a saw")] == [400, 200]
    reloaded = await post(running, "/admin/moderation/reload")
    assert reloaded.json()["rules"] == ["no-saws"]
    assert [await drawn(running, text) for text in ("an axe", "a saw")] == [200, 400]
    policy.write_text("[[rules]]\nname = 'empty'\n")
    refused = await post(running, "/admin/moderation/reload")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_policy")
    assert (await running.client.get("/admin/moderation", headers=ADMIN)).json() == reloaded.json()
    assert [await drawn(running, text) for text in ("an axe", "a saw")] == [200, 400]
    policy.write_text(POLICY)
    await post(running, "/admin/moderation/reload")


async def test_a_text_is_tried_against_the_policy_or_a_draft(running: InProcess) -> None:
    path = "/admin/moderation/test"
    found = (await post(running, path, {"text": "An  AXE"})).json()
    assert (found["flagged"], found["findings"]) == (
        True, [{"policy": "no-axes", "category": "violence", "evidence": "'axe'"}],
    )  # fmt: skip
    assert not (await post(running, path, {"text": "a saw"})).json()["flagged"]
    draft = {"text": "a saw", "policy_toml": POLICY.replace("axe", "saw"), "group": "chat"}
    assert (await post(running, path, draft)).json()["findings"][0]["policy"] == "no-saws"
    for param, value in (("policy_toml", "rules = 7"), ("group", "y")):
        answer = await post(running, path, {"text": "x", param: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert "/tmp" not in answer.text
    refusals = (await running.client.get("/admin/refusals", headers=ADMIN)).json()["data"]
    assert {entry["key_name"] for entry in refusals} <= {"test"}  # of calls alone
