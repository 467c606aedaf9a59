"""Batches in a whole app: every line runs as its call would, once, and its answer is in the output."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from sqlalchemy import func, select, update

from server.accounts.batches import Batch, BatchLine
from server.accounts.response_tables import BatchLineRow, BatchRow
from server.accounts.tables import EntryRow
from server.flows.batches.run import BatchRunner
from tests.support.in_process import InProcess, in_process
from tests.support.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
IMAGES, CHAT, RESPONSES = "/v1/images/generations", "/v1/chat/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    IMAGES: {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256"},
    CHAT: {"model": "starter-chat", "messages": [{"role": "user", "content": "Hello"}]},
    RESPONSES: {"model": "starter-chat", "input": "Hello"},
}
INVALID: list[tuple[Any, str]] = [
    ("\n \n", "it has no lines"),
    ("{", "line 1: it is no JSON"),
    ([3], "line 1: it must be an object"),
    ([{"url": CHAT, "body": {}}], "line 1: its 'custom_id'"),
    ([{"custom_id": "a", "url": "/v1/embeddings", "body": {}}], "line 1: its 'url' must be one of"),
    ([{"custom_id": "a", "url": CHAT}], "line 1: its 'body'"),
    ([{"custom_id": "a", "url": CHAT, "body": {}, "method": "GET"}], "line 1: its 'method'"),
    ([{"custom_id": "a", "url": CHAT, "body": {"stream": True}}], "line 1: 'stream' is not possible"),
    ([{"custom_id": "a", "url": RESPONSES, "body": {"background": True}}], "line 1: 'background' is not possible"),
    ([{"custom_id": "a", "url": CHAT, "body": {}}] * 2, "line 2: the custom_id 'a' is used twice"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "night.jsonl").write_text(json.dumps(line("a", CHAT)) + "\n\n" + json.dumps(line("b", CHAT)))
    (folder.parent / "secret.jsonl").write_text(json.dumps(line("a", CHAT)))
    async with in_process(tmp_path_factory.mktemp("home"), batch_folder=folder) as app:
        yield app


def line(name: str, url: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": {**BODIES[url], **fields}}


async def ended(running: InProcess, batch_id: str) -> dict[str, Any]:
    async with asyncio.timeout(15):
        while True:
            batch: dict[str, Any] = (await running.client.get(f"/v1/batches/{batch_id}")).json()
            if batch["status"] not in {"in_progress", "cancelling"}:
                return batch
            await asyncio.sleep(0.01)


async def output(running: InProcess, batch: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await running.client.get(batch["output_url"])
    assert answer.headers["content-type"].startswith("application/jsonl")
    return [json.loads(each) for each in answer.text.splitlines()]


async def create(running: InProcess, lines: Any, **fields: Any) -> dict[str, Any]:
    answer = await running.client.post("/v1/batches", json={"input": lines, **fields})
    assert answer.status_code == 200, answer.text
    batch: dict[str, Any] = answer.json()
    return batch


async def charges(running: InProcess) -> int:
    """The number of charges of all keys."""

    def count() -> int:
        with running.services.stores.database.read() as session:
            return int(session.scalar(select(func.count()).select_from(EntryRow)) or 0)

    return await asyncio.to_thread(count)


async def test_lines_of_every_route_are_answered_as_their_calls_would_be(running: InProcess) -> None:
    lines = [line("i", IMAGES), line("c", CHAT), line("r", RESPONSES), line("bad", IMAGES, n=99)]
    sent = "\n".join(map(json.dumps, lines))
    begun = await create(running, sent, metadata={"night": "1"}, input_file_id="")
    assert (begun["status"], begun["request_counts"]["total"]) == ("in_progress", 4)
    batch = await ended(running, begun["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    assert batch["metadata"] == {"night": "1"}
    image, chat, response, bad = await output(running, batch)
    assert [each["custom_id"] for each in (image, chat, response, bad)] == ["i", "c", "r", "bad"]
    assert {each["response"]["status_code"] for each in (image, chat, response)} == {200}
    assert chat["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
    assert response["response"]["body"]["output"][0]["content"][0]["text"] == "Hello"
    url = image["response"]["body"]["data"][0]["url"]
    assert (await running.client.get(url)).headers["content-type"] == "image/png"
    assert (bad["response"]["status_code"], bad["response"]["body"]["error"]["param"]) == (400, "n")
    assert all(each["response"]["request_id"] for each in (image, chat, response, bad))


async def test_each_image_is_charged_once_and_belongs_to_the_key(running: InProcess) -> None:
    before, charged = len(running.workers.jobs), await charges(running)
    batch = await ended(running, (await create(running, [line(f"{i}", IMAGES) for i in range(9)]))["id"])
    assert batch["request_counts"] == {"total": 9, "completed": 9, "failed": 0}
    assert (len(running.workers.jobs) - before, await charges(running) - charged) == (9, 9)
    other = await running.another_key()
    assert (await running.client.get(f"/v1/batches/{batch['id']}", headers=other)).status_code == 404
    assert (await running.client.get(batch["output_url"], headers=other)).status_code == 404
    assert (await running.client.post(f"/v1/batches/{batch['id']}/cancel", headers=other)).status_code == 404


async def test_a_line_whose_answer_was_not_recorded_is_replayed(running: InProcess) -> None:
    """As after a crash between the charge and the record of the answer."""
    first = await ended(running, (await create(running, [line("a", IMAGES)]))["id"])
    (before,) = await output(running, first)
    jobs, charged = len(running.workers.jobs), await charges(running)
    await asyncio.to_thread(_forget, running, first["id"])
    running.services.batches.runner.poll()
    (after,) = await output(running, await ended(running, first["id"]))
    assert after["response"]["body"] == before["response"]["body"]
    assert (len(running.workers.jobs), await charges(running)) == (jobs, charged)


def _forget(running: InProcess, batch_id: str) -> None:
    with running.services.stores.database.write() as session:
        session.execute(update(BatchLineRow).where(BatchLineRow.batch_id == batch_id).values(status=None, answer=None))
        session.execute(update(BatchRow).where(BatchRow.id == batch_id).values(state="in_progress", owner="dead"))


@pytest.mark.parametrize(("lines", "message"), INVALID, ids=[message for _, message in INVALID])
async def test_an_invalid_line_is_refused_by_its_number(running: InProcess, lines: Any, message: str) -> None:
    refused = await running.client.post("/v1/batches", json={"input": lines})
    assert refused.status_code == 400, refused.text
    assert message in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "input"


async def test_lines_come_from_the_operators_folder_alone(running: InProcess) -> None:
    secret = running.client.headers["Authorization"].removeprefix("Bearer ")
    client = AsyncOpenAI(base_url="http://test/v1", api_key=secret, http_client=running.client)
    batch = await client.batches.create(
        input_file_id="night.jsonl", endpoint="/v1/chat/completions", completion_window="24h"
    )
    done = await ended(running, batch.id)
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert (await client.batches.list(limit=1)).data[0].id == batch.id
    assert (await client.batches.retrieve(batch.id)).status == "completed"
    for name in ("../secret.jsonl", "/etc/passwd", "none.jsonl", "."):
        refused = await running.client.post("/v1/batches", json={"input_file_id": name})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_not_found"), refused.text


async def test_a_cancelled_batch_begins_no_more_lines(running: InProcess) -> None:
    running.workers.gate.clear()
    try:
        batch = await create(running, [line(f"{i}", IMAGES) for i in range(30)], endpoint=IMAGES)
        cancelled = await running.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert cancelled.json()["status"] == "cancelling"
    finally:
        running.workers.gate.set()
    done = await ended(running, batch["id"])
    assert done["status"] == "cancelled"
    assert done["cancelled_at"] >= done["cancelling_at"]
    lines = await output(running, done)
    run = [each for each in lines if each["response"]]
    assert len(lines) == 30
    assert len(run) == done["request_counts"]["completed"] <= 4
    assert {each["error"]["code"] for each in lines if not each["response"]} == {"batch_cancelled"}
    again = await running.client.post(f"/v1/batches/{batch['id']}/cancel")
    assert again.json()["status"] == "cancelled"


async def test_an_expired_batch_says_which_lines_were_not_run(running: InProcess) -> None:
    store, key = running.services.stores.batches, (await running.client.get("/v1/darkroom/me")).json()["id"]
    now = store.now()
    batch = Batch("batch_old", key, CHAT, None, "http://test", {}, 1, now - 10, now - 5)
    await store.in_writer(store.create, batch, [BatchLine(0, "a", CHAT, json.dumps(BODIES[CHAT]))])
    running.services.batches.runner.poll()
    done = await ended(running, "batch_old")
    assert (done["status"], done["expired_at"] is None) == ("expired", False)
    ((answer),) = await output(running, {**done, "output_url": "/v1/batches/batch_old/output"})
    assert (answer["response"], answer["error"]["code"]) == (None, "batch_expired")


async def test_no_batch_lasts_longer_than_its_calls_are_known(tmp_path: Path) -> None:
    async with in_process(tmp_path, idempotency_s=3600) as app:
        batch = await create(app, [line("a", CHAT)])
        assert batch["expires_at"] - batch["created_at"] == 3600
        assert (await app.client.post("/v1/batches", json={"input_file_id": "x"})).status_code == 400
        assert (await app.client.post("/v1/batches", json={})).json()["error"]["param"] == "input"


async def test_old_batches_are_deleted(running: InProcess) -> None:
    store = running.services.stores.batches
    batch = await ended(running, (await create(running, [line("a", CHAT)]))["id"])
    assert await store.in_writer(store.delete_older, 3600.0) == 0
    assert await store.in_writer(store.delete_older, -60.0) > 0
    assert (await running.client.get(f"/v1/batches/{batch['id']}")).status_code == 404


async def test_lines_wait_for_others_where_this_server_draws_or_answers(running: InProcess) -> None:
    running.workers.jobs.clear()
    lines = [line("i", IMAGES), line("c", CHAT), line("r", RESPONSES), line("now", CHAT, service_tier="default")]
    batch = await ended(running, (await create(running, lines))["id"])
    bodies = {each["custom_id"]: each["response"]["body"] for each in await output(running, batch)}
    assert {name: body["service_tier"] for name, body in bodies.items()} == {
        "i": "flex", "c": "flex", "r": "flex", "now": "default",
    }  # fmt: skip
    assert sorted(job.tier for job in running.workers.jobs) == ["default", "flex", "flex", "flex"]


@pytest.mark.parametrize("turns", range(4))
async def test_the_server_stops_although_a_batch_has_just_come(running: InProcess, turns: int) -> None:
    async def send(*_: Any) -> Any:
        raise AssertionError("nothing is to be sent")

    runner = BatchRunner(running.services.stores.batches, running.services.running.drain)
    task = asyncio.create_task(runner.run(send))
    await eventually(lambda: runner._changed._waiters)
    runner.poll()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=15)
    assert task.cancelled()
