"""An Idempotency-Key on chats: a retry joins the chat or gets its answer, streamed or not."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from server.accounts.tables import CallRow
from tests.support.in_process import InProcess, in_process
from tests.support.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "starter-chat", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = {**BODY, "stream": True, "stream_options": {"include_usage": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        yield app


async def send(running: InProcess, key: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    return await running.client.post(PATH, json=body or BODY, headers={"Idempotency-Key": key, **headers})


def texts(stream: httpx.Response) -> str:
    lines = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def test_an_answer_is_repeated_and_nothing_runs_again(running: InProcess) -> None:
    before = len(running.workers.jobs)
    first, again = [await send(running, "one", body) for body in (BODY, {**dict(reversed(BODY.items())), "n": None})]
    assert first.status_code == again.status_code == 200
    assert first.json()["choices"][0]["message"]["content"] == "Hello"
    assert again.json() == first.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-ratelimit-limit-requests"]
    assert len(running.workers.jobs) == before + 1


async def test_a_stream_is_repeated_chunk_by_chunk(running: InProcess) -> None:
    before = len(running.workers.jobs)
    first, again = [await send(running, "stream", STREAM) for _ in range(2)]
    assert texts(first) == "Hello"
    assert again.text == first.text
    assert '"usage":{' in first.text
    assert again.headers["idempotency-replayed"] == "true"
    assert len(running.workers.jobs) == before + 1


async def test_requests_at_one_time_share_one_chat(running: InProcess) -> None:
    before = len(running.workers.jobs)
    running.workers.gate.clear()
    sent = [asyncio.create_task(send(running, "joined", STREAM)) for _ in range(3)]
    await eventually(lambda: len(running.workers.jobs) > before)
    running.workers.gate.set()
    answers = await asyncio.gather(*sent)
    assert {answer.text for answer in answers} == {answers[0].text}
    assert len(running.workers.jobs) == before + 1


async def test_a_chat_goes_on_without_its_client(running: InProcess) -> None:
    running.workers.gate.clear()
    before = len(running.workers.jobs)
    sent = asyncio.create_task(send(running, "left"))
    await eventually(lambda: len(running.workers.jobs) > before)
    sent.cancel()
    running.workers.gate.set()
    again = await send(running, "left")
    assert again.json()["choices"][0]["message"]["content"] == "Hello"
    assert len(running.workers.jobs) == before + 1


async def test_another_body_is_refused_and_a_key_is_its_callers_own(running: InProcess) -> None:
    await send(running, "mine")
    refused = await send(running, "mine", {**BODY, "temperature": 0.5})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    other = await send(running, "mine", **await running.another_key())
    assert "idempotency-replayed" not in other.headers
    too_long = await send(running, "k" * 256)
    assert too_long.json()["error"]["code"] == "invalid_idempotency_key"
    image = await running.client.post(
        "/v1/images/generations", json={"prompt": "x"}, headers={"Idempotency-Key": "mine"}
    )
    assert (image.status_code, "idempotency-replayed" in image.headers) == (200, False)


async def test_a_failure_frees_the_key(running: InProcess) -> None:
    running.workers.fails = True
    failed = await send(running, "fails")
    running.workers.fails = False
    assert failed.status_code == 500
    again = await send(running, "fails")
    assert (again.status_code, "idempotency-replayed" in again.headers) == (200, False)


async def test_a_chat_is_no_image_job(running: InProcess) -> None:
    await send(running, "no job")
    database = running.services.stores.database

    def chat_ids() -> set[str]:
        with database.read() as session:
            return set(session.scalars(select(CallRow.id).where(CallRow.endpoint == "chat.completions")))

    ids = await database.in_reader(chat_ids)
    assert ids
    jobs = (await running.client.get("/v1/images/jobs?limit=100")).json()["data"]
    assert not ids & {job["id"] for job in jobs}
    assert (await running.client.get(f"/v1/images/jobs/{ids.pop()}")).status_code == 404


async def test_an_answer_is_known_after_a_restart(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running:
        first = await send(running, "kept")
        headers = dict(running.client.headers)
    async with in_process(tmp_path) as running:
        again = await send(running, "kept", Authorization=headers["authorization"])
        assert not running.workers.jobs
    assert again.json() == first.json()
