"""What ends while PostgreSQL is away, or when it breaks off: its key gets its slot back, and pollers get their end."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event

from server import housekeeping
from server.accounts import db
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.response_items import StoredItem
from server.accounts.responses import END_LOST, ResponseStore, StoredResponse
from server.catalog.images import load_catalog
from server.data_folders import REPOSITORY
from tests.support.harness import free_port
from tests.support.in_process import InProcess, in_process
from tests.support.polling import eventually
from tests.unit.accounts.conftest import Cluster
from tests.unit.accounts.helpers import GROUPS, server

pytestmark = pytest.mark.slow

ON_POSTGRESQL = pytest.mark.parametrize("url", ["postgresql"], indirect=True)
CHAT = {"model": "starter-chat", "messages": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"input": "Hello", "background": True}


@contextmanager
def away(cluster: Cluster) -> Iterator[None]:
    """PostgreSQL is stopped, and five minutes are over at once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(db, "PATIENT_LIMIT_S", 1.0)
        monkeypatch.setattr(db, "REQUEST_LIMIT_S", 1.0)
        cluster.stop()
        try:
            yield
        finally:
            cluster.start()


@asynccontextmanager
async def gateway(home: Path, url: str, **settings: Any) -> AsyncIterator[InProcess]:
    """One of several servers, which looks for lost ends when the test tells it to."""
    catalog = load_catalog(REPOSITORY / "model_configs", home)
    paths = {path for spec in catalog.checkpoints for path in spec.paths}
    for path in paths | {spec.path for spec in catalog.chat.checkpoints}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()  # nothing is loaded
    shared = {
        "gateway_url": f"http://127.0.0.1:{free_port()}",
        "cluster_secret": "of this test and of no other cluster",
        "storage": str(home / "results"),
        "lease_s": 3600,
        "configs": Path(shutil.copytree(REPOSITORY / "model_configs", home / "model_configs")),
    }
    async with in_process(home, database=url, **shared, **settings) as running:
        yield running


async def begin(running: InProcess, idempotency_key: str) -> str:
    """A response in the background; returns its id."""
    jobs = len(running.workers.jobs)
    answer = await running.client.post("/v1/responses", json=RESPONSE, headers={"Idempotency-Key": idempotency_key})
    assert answer.status_code == 200, answer.text
    await eventually(lambda: len(running.workers.jobs) > jobs)
    return str(answer.json()["id"])


async def states(running: InProcess, *ids: str) -> list[str]:
    return [(await running.client.get(f"/v1/responses/{each}")).json()["status"] for each in ids]


async def unended_claims(running: InProcess) -> set[str]:
    claims = running.services.stores.claims
    assert claims is not None
    return await claims.in_reader(claims.running_here)


@contextmanager
def cut_off(database: Database, statement: str) -> Iterator[list[int]]:
    """Once, PostgreSQL ends all connections right after a statement that begins so, before its transaction is
    committed."""
    cuts: list[int] = []

    def cut(_: Connection, __: object, executed: str, *___: object) -> None:
        if executed.startswith(statement) and not cuts:
            cuts.append(1)
            name = database.url.database
            with psycopg.connect(f"host={database.url.query['host']} user=darkroom dbname={name}") as other:
                others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                other.execute(f"{others} AND pid <> pg_backend_pid()".encode())

    event.listen(database._writer, "after_cursor_execute", cut)
    try:
        yield cuts
    finally:
        event.remove(database._writer, "after_cursor_execute", cut)


@pytest.mark.nightly
@ON_POSTGRESQL
async def test_a_key_gets_its_slots_back_after_the_database_was_away_for_too_long(
    url: str, cluster: Cluster, tmp_path: Path
) -> None:
    async with gateway(tmp_path, url, max_running_per_key=2) as running:
        services = running.services
        running.workers.gate.clear()
        response = await begin(running, "k")
        chat = asyncio.create_task(running.client.post("/v1/chat/completions", json=CHAT))
        await eventually(lambda: len(running.workers.jobs) == 2)
        with away(cluster):
            running.workers.gate.set()
            assert (await chat).status_code == 200
            await eventually(lambda: not services.admission.limiter.claimed_ids)
            await services.running.background.join()
        assert await states(running, response) == ["in_progress"]
        assert (await running.client.post("/v1/chat/completions", json=CHAT)).status_code == 429
        await housekeeping._renew_leases(services)
        assert await states(running, response) == ["failed"]
        assert (await running.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert await begin(running, "k") != response  # its Idempotency-Key is free


@ON_POSTGRESQL
async def test_an_end_that_was_cut_off_is_recorded_as_the_client_saw_it(url: str, tmp_path: Path) -> None:
    async with in_process(tmp_path, database=url, lease_s=3600) as running:
        services = running.services
        running.workers.gate.clear()
        response = await begin(running, "k")
        with cut_off(services.stores.database, "UPDATE responses SET state=") as cuts:
            running.workers.gate.set()
            await eventually(lambda: not services.admission.limiter.claimed_ids)
            assert cuts
        assert await states(running, response) == ["in_progress"]
        await housekeeping._renew_leases(services)
        assert await states(running, response) == ["completed"]
        again = await running.client.post("/v1/responses", json=RESPONSE, headers={"Idempotency-Key": "k"})
        assert (again.json()["id"], again.headers["idempotency-replayed"]) == (response, "true")
        assert services.stores.responses.unrecorded_ids == frozenset()


@ON_POSTGRESQL
async def test_a_claim_whose_end_was_cut_off_ends(url: str, tmp_path: Path) -> None:
    async with gateway(tmp_path, url, max_running_per_key=1) as running:
        with cut_off(running.services.stores.database, "UPDATE claims SET ended_at=") as cuts:
            assert (await running.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            await running.services.running.background.join()
            assert cuts
        assert len(await unended_claims(running)) == 1
        await housekeeping._renew_leases(running.services)
        assert await unended_claims(running) == set()


@ON_POSTGRESQL
@pytest.mark.parametrize("store", ["claims", "responses"])
async def test_what_begins_while_lost_ends_are_looked_for_goes_on(
    url: str, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read_on = threading.Event(), threading.Event()
    async with gateway(tmp_path, url) as running:
        looked_at = getattr(running.services.stores, store)
        read = looked_at.running_here

        def read_later() -> set[str]:
            reads.set()
            assert read_on.wait(60)
            return set(read())

        monkeypatch.setattr(looked_at, "running_here", read_later)
        looking = asyncio.create_task(housekeeping._renew_leases(running.services))
        await eventually(reads.is_set)
        running.workers.gate.clear()
        response = await begin(running, "k")
        read_on.set()
        await looking
        assert await states(running, response) == ["in_progress"]
        assert await unended_claims(running) == {response}
        running.workers.gate.set()
        await eventually(lambda: not running.services.admission.limiter.claimed_ids)
        assert await states(running, response) == ["completed"]


def test_a_response_whose_end_is_not_known_fails_unless_an_image_was_charged(database: Database) -> None:
    key, _ = create_key(database, "test", GROUPS)
    store = ResponseStore(database, "me")
    server(database, "me")
    for name in ("resp_failed", "resp_charged", "resp_runs"):
        store.begin(StoredResponse(name, key.id, None, "in_progress", True, {}, 1, idempotency_key=name), [])
    charged = store.find("resp_charged", key.id)
    assert charged is not None
    store.add_output(charged[0], 0, StoredItem("output", {"id": "ig_1"}, "a.png"))
    assert store.running_here() == {"resp_failed", "resp_charged", "resp_runs"}
    assert ResponseStore(database, "another").running_here() == set()
    assert store.finish_lost(["resp_failed", "resp_charged"]) == 2
    found = {name: store.find_keyed(name, key.id) for name in ("resp_failed", "resp_charged", "resp_runs")}
    assert [None if each is None else each[0].state for each in found.values()] == [None, "completed", "in_progress"]
    failed = store.find("resp_failed", key.id)
    assert failed is not None
    assert failed[0].ended == {"error": END_LOST}
