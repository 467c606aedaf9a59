"""The queue as operators see it: listed, watched, cancelled; and thumbnails."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from PIL import Image
from rich.console import Console

from pipelines.protocol.messages import GpuMemory, WorkerMemory
from server.accounts.audit import AuditFilter, list_changes
from server.accounts.paging import Page
from server.cli.tables import model_tables
from server.flows.operators.queue import worker_reports
from tests.support.file_counter import FileCounter
from tests.support.in_process import InProcess, come_up, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = {"Authorization": "Bearer admin"}
DRAW, DRAWN = "/v1/images/generations", {"prompt": "a boat", "size": "256x256", "background": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    async with in_process(home) as app:
        yield app


@pytest_asyncio.fixture(loop_scope="module")
async def waiting(running: InProcess) -> AsyncIterator[str]:
    """The id of a call that does not end before the test."""
    running.workers.gate.clear()
    answer = await running.client.post(DRAW, json=DRAWN)
    yield answer.headers["x-darkroom-job"]
    running.workers.gate.set()
    await asyncio.gather(*(call.wait_done() for call in running.services.running.calls.all()))


async def jobs(running: InProcess) -> list[dict[str, Any]]:
    answer = await running.client.get("/admin/jobs", headers=ADMIN)
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def started(running: InProcess) -> dict[str, Any]:
    """The only job, once it is on the device."""
    async with asyncio.timeout(60):
        while True:
            (job,) = await jobs(running)
            if job["step"] is not None:
                return job
            await asyncio.sleep(0.01)


async def test_every_job_is_listed_with_its_key_and_progress(running: InProcess, waiting: str) -> None:
    job = await started(running)
    assert (job["id"], job["kind"], job["key_name"], job["state"]) == (waiting, "image", "test", "running")
    assert (job["model"], job["size"], job["position"]) == ("alpha-image-2-count", "256x256", 0)
    assert (job["step"], job["steps"]) == (1, 2)


async def test_an_operator_ends_another_keys_job(running: InProcess, waiting: str) -> None:
    answer = await running.client.delete(f"/admin/jobs/{waiting}", headers=ADMIN)
    assert answer.status_code == 200
    state = (await running.client.get(f"/v1/images/jobs/{waiting}")).json()
    assert (state["state"], state["error"]["code"]) == ("cancelled", "cancelled_by_operator")
    assert await jobs(running) == []
    assert (await running.client.delete(f"/admin/jobs/{waiting}", headers=ADMIN)).status_code == 404
    database = running.services.stores.database
    (entry,) = await database.in_reader(list_changes, database, AuditFilter(target=waiting), Page(5, "asc", None))
    assert (entry.operator, entry.action) == ("admin", "job.cancel")


async def test_the_queue_is_watched_as_it_changes(running: InProcess, waiting: str) -> None:
    await started(running)
    seen = running.services.operations.job_queue.watch()
    async with asyncio.timeout(60):
        first = await anext(seen)
        assert [job.id for job in first.jobs] == [waiting]
        assert [worker.kind for worker in first.workers] == ["image", "chat"]
        running.workers.gate.set()
        assert (await anext(seen)).jobs == []
        running.services.running.drain.draining = True
        with pytest.raises(StopAsyncIteration):
            await anext(seen)
    running.services.running.drain.draining = False


async def test_the_stream_has_named_events(running: InProcess) -> None:
    """It ends with the server: this client reads only what has ended."""
    drain = running.services.running.drain
    watched = asyncio.get_running_loop().call_later(1, setattr, drain, "draining", True)
    answer = await running.client.get("/admin/events", headers=ADMIN)
    watched.cancel()
    drain.draining = False
    lines = [line for line in answer.text.split("\n") if line.startswith(("event", "data"))]
    assert lines[0] == "event: queue.snapshot"
    assert json.loads(lines[1].removeprefix("data: "))["jobs"] == []


async def test_the_status_names_version_workers_and_disk(running: InProcess) -> None:
    shown = (await running.client.get("/admin/status", headers=ADMIN)).json()
    assert shown["version"] == running.services.telemetry.version
    assert [worker["ready"] for worker in shown["workers"]] == [False, False]
    assert 0 < shown["disk"]["free_bytes"] < shown["disk"]["total_bytes"]


async def test_a_thumbnail_is_made_once_and_goes_with_its_image(running: InProcess) -> None:
    drawn = await running.client.post(DRAW, json={"prompt": "a boat", "size": "256x256"})
    name = drawn.json()["data"][0]["url"].rpartition("/")[2]

    async def thumbnail(width: str) -> httpx.Response:
        return await running.client.get(f"/cdn/{name}", params={"w": width})

    first, again = await thumbnail("160"), await thumbnail("160")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/webp")
    assert again.content == first.content
    image = Image.open(io.BytesIO(first.content))
    assert image.format == "WEBP"
    cached = list(running.services.settings.thumbnails.glob(f"??/{name.partition('.')[0]}.*"))
    assert [path.suffix for path in cached] == [".w160"]
    refused = await thumbnail("161")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "w")
    assert (await running.client.delete(f"/v1/darkroom/results/{name}")).status_code == 200
    assert (await thumbnail("160")).status_code == 404
    assert not cached[0].exists()


async def test_many_thumbnails_at_once_have_two_originals_in_memory(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the URL of an image may ask for them on every connection."""
    drawn = await running.client.post(DRAW, json={"prompt": "a boat", "size": "256x256", "n": 4})
    paths = ["/cdn/" + item["url"].rpartition("/")[2] for item in drawn.json()["data"]]
    files = FileCounter.install(monkeypatch)
    asked = (running.client.get(path, params={"w": width}) for path in paths * 3 for width in ("160", "320"))
    answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * 24
    assert files.read == 8  # each is made once
    assert files.most <= 2


async def test_a_backup_that_can_not_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "admin-key").write_text("admin")
    async with in_process(tmp_path) as app:
        await asyncio.to_thread(_delete_database, tmp_path)
        answer = await app.client.post("/admin/backup", headers=ADMIN)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "backup_failed")
    assert "No server has run" in error["message"]


def _delete_database(home: Path) -> None:
    """What is open stays readable: the server answers, and has nothing to copy."""
    for path in list(home.glob("darkroom.db*")):
        path.unlink()


async def test_a_worker_tells_its_memory_and_that_of_its_gpu(running: InProcess) -> None:
    host = running.services.engines.chat
    gpu = GpuMemory(80 * 2**30, 60 * 2**30, 10 * 2**30, 0, 10 * 2**30)
    come_up(host, "a GPU", memory=WorkerMemory(300 * 2**20, gpu))
    [told] = worker_reports([host])
    assert told.memory is not None
    assert told.memory.model_dump() == {
        "host_bytes": 288 * 2**20, "gpu_bytes": 10 * 2**30, "gpu_used_bytes": 20 * 2**30, "gpu_total_bytes": 80 * 2**30,
    }  # fmt: skip
    come_up(host, "a GPU")  # and has not told it yet
    assert worker_reports([host])[0].memory is None


async def test_operators_read_for_which_checkpoint_a_worker_is_left_out_and_why(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, why = running.services.engines.image, "it takes at least 12.00 GiB"
    spec, name = running.services.served.catalog.current.checkpoints[0], engine.workers[0].name
    monkeypatch.setattr(engine, "current", replace(engine.current, too_small={name: {spec: why}}))
    readiness = (await running.client.get("/readyz", headers=ADMIN)).json()
    assert readiness["image"][0]["failed"] == {spec.name: why}
    console = Console(file=io.StringIO(), width=240)
    console.print(*model_tables([], readiness))
    assert isinstance(console.file, io.StringIO)
    assert f"{spec.name} failed: {why}" in console.file.getvalue()
