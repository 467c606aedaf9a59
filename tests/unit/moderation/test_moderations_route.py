"""POST /v1/moderations: the policy's judgement in OpenAI's shape."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from sqlalchemy import func, select

from server.accounts.tables import RefusalRow
from server.flows.moderation import CATEGORIES
from tests.support.in_process import InProcess, in_process, png

pytestmark = pytest.mark.asyncio(loop_scope="module")
POLICY = """
[[rules]]
name     = "no-weapons"
category = "violence"
terms    = ["assault rifle"]
stages   = ["output"]

[[rules]]
name     = "no-lions"
category = "animals"
terms    = ["lion"]

[[rules]]
name     = "no-tigers"
category = "animals"
terms    = ["tiger"]
groups   = ["beta-image-per-call"]
"""
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png()).decode()}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    policy = tmp_path_factory.mktemp("policy") / "policy.toml"
    policy.write_text(POLICY)
    async with in_process(tmp_path_factory.mktemp("home"), moderation=policy) as app:
        yield app


async def judge(running: InProcess, value: Any, **fields: Any) -> dict[str, Any]:
    answer = await running.client.post("/v1/moderations", json={"input": value, **fields})
    assert answer.status_code == 200, answer.text
    judged: dict[str, Any] = answer.json()
    return judged


async def test_a_text_has_one_result_with_all_of_openais_categories(running: InProcess) -> None:
    judged = await judge(running, "an ASSAULT  rifle")
    assert judged["model"] == "omni-moderation-latest"
    (result,) = judged["results"]
    assert set(result["categories"]) == {*CATEGORIES, "animals"}
    assert [name for name, breached in result["categories"].items() if breached] == ["violence"]
    assert (result["flagged"], result["category_scores"]["violence"], result["policies"]) == (True, 1.0, ["no-weapons"])
    assert result["category_applied_input_types"]["violence"] == ["text"]
    assert result["category_applied_input_types"]["sexual"] == []


async def test_each_text_is_judged_by_itself(running: InProcess) -> None:
    results = (await judge(running, ["a lion", "a harbour", "a tiger"]))["results"]
    assert [result["flagged"] for result in results] == [True, False, True]
    assert [result["policies"] for result in results] == [["no-lions"], [], ["no-tigers"]]


async def test_parts_are_judged_together(running: InProcess) -> None:
    parts = [{"type": "text", "text": "an assault"}, IMAGE, {"type": "text", "text": "rifle"}]
    results = (await judge(running, parts))["results"]
    assert [result["policies"] for result in results] == [["no-weapons"]]


async def test_nothing_is_recorded_or_refused(running: InProcess) -> None:
    await judge(running, "a lion")

    def refusals() -> int:
        with running.services.stores.database.read() as session:
            return int(session.scalar(select(func.count()).select_from(RefusalRow)) or 0)

    assert await asyncio.to_thread(refusals) == 0
    assert running.workers.jobs == []


async def test_the_sdk_reads_it(running: InProcess) -> None:
    secret = running.client.headers["Authorization"].removeprefix("Bearer ")
    client = AsyncOpenAI(base_url="http://test/v1", api_key=secret, http_client=running.client)
    answer = await client.moderations.create(input="an assault rifle", model="omni-moderation-latest")
    assert answer.results[0].flagged
    assert answer.results[0].categories.violence
    assert not answer.results[0].categories.self_harm


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "input"),
        ([], "input"),
        (5, "input[0]"),
        ([5], "input[0]"),
        (["a", {"type": "text", "text": "b"}], "input[0]"),
        ([{"type": "audio"}], "input[0].type"),
        ([{"type": "image_url", "image_url": {}}], "input[0].image_url.url"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "input[0].image_url"),
        ([IMAGE] * 17, "input"),
        (["x"] * 129, "input"),
    ],
)
async def test_bad_input_is_refused_by_its_field(running: InProcess, value: Any, param: str) -> None:
    refused = await running.client.post("/v1/moderations", json={"input": value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


async def test_a_server_without_a_policy_flags_nothing(tmp_path: Path) -> None:
    async with in_process(tmp_path) as app:
        assert not (await judge(app, "an assault rifle"))["results"][0]["flagged"]
