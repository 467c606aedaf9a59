"""Submit and come back: calls in the background, their list, their state, their cancellation."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from pipelines.protocol.images import Progress, Started
from server.accounts.calls import CallId, CallStore
from server.accounts.db import Database
from server.accounts.ledger import BilledCall, Ledger
from server.accounts.tables import EntryRow, KeyRow
from server.state.active_calls import ActiveCall
from server.state.image_backlog import Backlog
from server.state.tasks import CancelReason
from server.telemetry.crash_points import CrashPoints
from tests.support.image_jobs import image_job
from tests.support.in_process import InProcess, in_process, png
from tests.unit.images.test_sampling_fields import SPEC

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH, EDITS, JOBS = "/v1/images/generations", "/v1/images/edits", "/v1/images/jobs"
BODY = {"prompt": "a boat", "size": "256x256", "background": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        yield app


async def submit(running: InProcess, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    answer = await running.client.post(PATH, json=BODY | (body or {}), headers=headers)
    assert answer.status_code == 202, answer.text
    return answer


async def ended(running: InProcess, job_id: str, **headers: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            job: dict[str, Any] = (await running.client.get(f"{JOBS}/{job_id}", headers=headers)).json()
            if job["state"] not in {"queued", "running"}:
                return job
            await asyncio.sleep(0.01)


async def charged(running: InProcess, job_id: str) -> bool:
    database = running.services.stores.database

    def is_charged() -> bool:
        with database.read() as session:
            return session.scalar(select(EntryRow).where(EntryRow.call_id == job_id)) is not None

    return await database.in_reader(is_charged)


def image_calls(running: InProcess) -> dict[str, float]:
    """How many have ended in which way, as /metrics has it."""
    samples = [sample for metric in running.services.telemetry.metrics.calls.collect() for sample in metric.samples]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


def run_on_a_server_that_dies(home: Path, call_id: str) -> None:
    """What a server leaves that is killed while it draws."""
    database = Database(f"sqlite:///{home / 'darkroom.db'}")
    with database.read() as session:
        key_id = session.scalars(select(KeyRow.id)).one()
    call = CallId(call_id, key_id, "images.generations", "print", None)
    billed = BilledCall(call_id, key_id, call.endpoint, "alpha-image-2-count", 1000)
    Ledger(database, "dead").hold(billed, [CallStore(database, "dead", 60).begin_write(call)])
    database.dispose()


async def test_a_job_in_the_background_is_told_of_at_once_and_read_later(running: InProcess) -> None:
    running.workers.gate.clear()
    answer = await submit(running)
    job = answer.json()
    assert answer.headers["location"] == f"{JOBS}/{job['id']}"
    assert answer.headers["x-darkroom-job"] == job["id"]
    assert int(answer.headers["retry-after"]) >= 1
    assert (job["object"], job["model"], job["result"]) == ("image.job", "alpha-image-2-count", None)
    async with asyncio.timeout(60):
        while job["progress"] is None:
            job = (await running.client.get(f"{JOBS}/{job['id']}")).json()
    assert (job["state"], job["position"], job["progress"]) == ("running", 0, {"step": 1, "steps": 2})
    assert job["estimated_s"] > 0
    assert "previews" not in job
    running.workers.gate.set()
    job = await ended(running, job["id"])
    assert (job["state"], job["model"]) == ("succeeded", "alpha-image-2-count")
    assert job["result"]["data"][0]["b64_json"]


async def test_edits_and_the_prefer_header_do_the_same(running: InProcess) -> None:
    form = {"prompt": "blue", "size": "256x256", "background": "true"}
    edit = await running.client.post(EDITS, data=form, files={"image": png()})
    assert edit.status_code == 202, edit.text
    body = {"prompt": "a boat", "size": "256x256"}
    preferred = await running.client.post(PATH, json=body, headers={"Prefer": "wait=5, Respond-Async; x=1"})
    assert (preferred.status_code, preferred.headers["preference-applied"]) == (202, "respond-async")
    for answer in (edit, preferred):
        assert (await ended(running, answer.json()["id"]))["state"] == "succeeded"
    stream = await running.client.post(PATH, json={**body, "stream": True}, headers={"Prefer": "respond-async"})
    assert stream.headers["content-type"].startswith("text/event-stream")
    waited = await running.client.post(PATH, json={**body, "background": False}, headers={"Prefer": "return=minimal"})
    assert waited.status_code == 200


async def test_previews_are_shown_on_request(running: InProcess) -> None:
    running.workers.gate.clear()
    job = (await submit(running, {"partial_images": 2})).json()
    previews: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while not previews:
            previews = (await running.client.get(f"{JOBS}/{job['id']}?previews=1")).json()["previews"]
    running.workers.gate.set()
    assert [(each["image_index"], each["partial_image_index"]) for each in previews] == [(0, 1)]
    assert previews[0]["b64_json"]
    await ended(running, job["id"])


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"stream": True}, 400, "stream"),
        ({"background": 5}, 400, "background"),
        ({"size": "huge"}, 400, "size"),
        ({"model": "none"}, 404, "model"),
    ],
)
async def test_what_can_be_known_to_fail_is_refused_at_once(
    running: InProcess, fields: dict[str, Any], status: int, param: str
) -> None:
    refused = await running.client.post(PATH, json={**BODY, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text


async def test_a_job_can_be_cancelled_and_is_not_charged(running: InProcess) -> None:
    running.workers.gate.clear()
    job_id = (await submit(running)).json()["id"]
    cancelled = (await running.client.post(f"{JOBS}/{job_id}/cancel")).json()
    running.workers.gate.set()
    assert (cancelled["state"], cancelled["error"]["code"]) == ("cancelled", "cancelled")
    again = await running.client.post(f"{JOBS}/{job_id}/cancel")
    assert again.json() == cancelled == (await running.client.get(f"{JOBS}/{job_id}")).json()
    assert not await charged(running, job_id)
    done = await ended(running, (await submit(running)).json()["id"])
    stays = await running.client.post(f"{JOBS}/{done['id']}/cancel")
    assert stays.json() == done
    assert await charged(running, done["id"])


async def test_a_client_that_waits_for_a_cancelled_call_is_told_not_to_retry(running: InProcess) -> None:
    running.workers.gate.clear()
    waiting = asyncio.create_task(running.client.post(PATH, json={**BODY, "background": False}))
    jobs: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while not jobs:
            jobs = (await running.client.get(f"{JOBS}?state=running")).json()["data"]
    await running.client.post(f"{JOBS}/{jobs[0]['id']}/cancel")
    running.workers.gate.set()
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("point", ["after-store", "after-capture-commit"])
@pytest.mark.parametrize("reason", [CancelReason.REQUESTED, CancelReason.SHUTDOWN])
async def test_a_cancellation_that_comes_too_late_is_answered_with_the_image(
    running: InProcess, monkeypatch: pytest.MonkeyPatch, reason: CancelReason, point: str
) -> None:
    """A client that was told "nothing was charged, send it again" would pay twice."""
    loop, calls = asyncio.get_running_loop(), running.services.running.calls.all

    def cancel_at_point(_: CrashPoints, reached: str) -> None:
        if reached == point:  # in the database's thread, or in the loop's
            loop.call_soon_threadsafe(lambda: [call.cancel(reason) for call in calls()])

    monkeypatch.setattr(CrashPoints, "hit", cancel_at_point)
    before = image_calls(running)
    answer = await running.client.post(PATH, json={**BODY, "background": False})
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"][0]["b64_json"]
    assert await charged(running, answer.headers["x-darkroom-job"])
    assert image_calls(running) == {**before, "captured": before.get("captured", 0) + 1}


async def test_an_idempotency_key_names_one_job_however_it_is_asked_for(running: InProcess) -> None:
    headers = {"Idempotency-Key": "job"}
    first = await submit(running, **headers)
    await ended(running, first.json()["id"])
    again = await submit(running, **headers)
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (first.json()["id"], "true")
    waited = await running.client.post(PATH, json={**BODY, "background": False}, headers=headers)
    assert (waited.status_code, waited.headers["x-darkroom-job"]) == (200, first.json()["id"])


async def test_a_key_lists_its_own_jobs_by_page_and_state(running: InProcess) -> None:
    key = await running.another_key()
    ids = []
    for _ in range(5):
        ids.append((await submit(running, **key)).json()["id"])
        assert (await ended(running, ids[-1], **key))["state"] == "succeeded"
    whole = (await running.client.get(JOBS, headers=key)).json()
    assert [job["id"] for job in whole["data"]] == ids[::-1]
    assert (whole["object"], whole["has_more"]) == ("list", False)
    assert {job["result"] for job in whole["data"]} == {None}
    page = (await running.client.get(JOBS, params={"limit": 2, "order": "asc"}, headers=key)).json()
    assert ([job["id"] for job in page["data"]], page["has_more"], page["last_id"]) == (ids[:2], True, ids[1])
    rest = (await running.client.get(JOBS, params={"order": "asc", "after": ids[1]}, headers=key)).json()
    assert [job["id"] for job in rest["data"]] == ids[2:]
    none = (await running.client.get(JOBS, params={"state": "failed"}, headers=key)).json()
    assert (none["data"], none["first_id"], none["last_id"]) == ([], None, None)
    for query, param in ({"state": "late"}, "state"), ({"limit": "0"}, "limit"), ({"order": "up"}, "order"):
        refused = await running.client.get(JOBS, params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    foreign = await running.client.get(JOBS, params={"after": ids[0]})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "job_not_found")
    for method, path in (("GET", f"{JOBS}/{ids[0]}"), ("POST", f"{JOBS}/{ids[0]}/cancel")):
        assert (await running.client.request(method, path)).status_code == 404


async def test_a_job_survives_the_end_of_its_server_and_says_what_became_of_it(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running:
        done = (await submit(running)).json()["id"]
        await ended(running, done)
        running.workers.gate.clear()
        stopped = (await submit(running)).json()["id"]
        headers = dict(running.client.headers)
    await asyncio.to_thread(run_on_a_server_that_dies, tmp_path, "img_killed")
    async with in_process(tmp_path) as running:
        names = (done, stopped, "img_killed")
        jobs = [(await running.client.get(f"{JOBS}/{name}", headers=headers)).json() for name in names]
        assert [await charged(running, name) for name in names] == [True, False, False]
    assert [job["state"] for job in jobs] == ["succeeded", "failed", "failed"]
    assert jobs[2]["error"]["code"] == "server_died"
    assert "stopped before its end; nothing was charged" in jobs[1]["error"]["message"]


async def test_the_outlook_counts_what_is_ahead() -> None:
    backlog = Backlog(9, 1e9, warmup_unit_s=lambda _: 1.0)
    calls = {name: ActiveCall(CallId(name, "key", "images.generations", "", None), 0) for name in "abc"}
    jobs = {
        name: image_job(SPEC, id=name, n=n, metadata={"model": name}) for name, n in zip("abc", (2, 3, 1), strict=True)
    }
    with backlog.reserve(jobs["a"], calls["a"]), backlog.reserve(jobs["b"], calls["b"]):
        calls["b"].report(Started())
        calls["b"].report(Progress(1, 2))
        with backlog.reserve(jobs["c"], calls["c"]):
            estimates = {name: backlog.estimate_job(name) for name in "abc"}
    assert {name: estimate.position for name, estimate in estimates.items() if estimate} == {"a": 2, "b": 0, "c": 1}
    times = {name: estimate.estimated_s for name, estimate in estimates.items() if estimate}
    assert times["c"] < times["a"]
    assert backlog.estimate_job("a") is None
