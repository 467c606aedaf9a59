"""A database that is locked, overloaded or away: reads go on, writes wait for as long as they are worth it."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from server.accounts import db, report
from server.accounts.db import Database
from server.accounts.keys import authenticate, create_key
from server.accounts.ledger import Ledger
from server.errors import DatabaseBusy, Overloaded
from tests.unit.accounts.conftest import Cluster
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result

ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


@pytest.fixture(autouse=True)
def request_limit_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one, so that the tests are short."""
    monkeypatch.setattr(db, "REQUEST_LIMIT_S", 1.0)


@contextlib.contextmanager
def locked(database: Database) -> Iterator[None]:
    """Another process writes, or has forgotten that it does."""
    with contextlib.closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextlib.contextmanager
def locked_key(database: Database, key_id: str) -> Iterator[None]:
    """Another transaction has the key's row, as an operator's session may."""
    with connect(database) as other:
        other.execute("SELECT 1 FROM keys WHERE id = %s FOR UPDATE", [key_id])
        yield


def connect(database: Database) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(f"host={database.url.query['host']} user=darkroom dbname={database.url.database}")


@ON_SQLITE
async def test_a_locked_database_refuses_writes_and_delays_no_read(database: Database) -> None:
    key, secret = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    with locked(database):
        began = time.monotonic()
        holds = [asyncio.create_task(ledger.in_writer(ledger.hold, call(f"c{i}", key.id))) for i in range(20)]
        await asyncio.sleep(0)  # they begin
        assert await database.in_reader(authenticate, database, secret) == key
        read_s = time.monotonic() - began
        refused = await asyncio.gather(*holds, return_exceptions=True)
        assert read_s < 5
    for error in refused:
        assert isinstance(error, DatabaseBusy)
        assert isinstance(error, Overloaded)
        assert not error.began
        assert int(error.headers["Retry-After"]) >= 1
    assert report.balances(database)[0].held_units == 0
    await ledger.in_writer(ledger.hold, call("c20", key.id))
    assert report.balances(database)[0].held_units == 1000


@ON_SQLITE
async def test_what_would_be_lost_waits_for_a_locked_database(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    with locked(database):
        capturing = asyncio.create_task(ledger.retry_in_writer(capture, ledger, "c1", [result("r1")]))
        renewal = asyncio.create_task(ledger.retry_in_writer(ledger.renew, ["c1"]))
        with pytest.raises(DatabaseBusy):
            await ledger.in_writer(ledger.hold, call("c2", key.id))
        assert not capturing.done()  # it has waited for longer
    await capturing
    assert await renewal == 0  # it is captured
    assert clean(database)


@ON_SQLITE
async def test_a_server_that_ends_waits_no_longer(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    with locked(database):
        writes = [asyncio.create_task(ledger.retry_in_writer(ledger.hold, call(f"c{i}", key.id))) for i in range(3)]
        await asyncio.sleep(0)  # they begin
        database.stop_waiting()
        refused = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), 60)
    assert all(isinstance(error, DatabaseBusy) for error in refused)
    await ledger.retry_in_writer(ledger.hold, call("c9", key.id))


async def test_reads_and_writes_have_threads_of_their_own(database: Database) -> None:
    assert (await database.in_reader(threading.current_thread)).name.startswith("db-read")
    assert (await database.in_writer(threading.current_thread)).name.startswith("db-write")


@ON_SQLITE
def test_a_blocking_write_says_why_it_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "COMMAND_LIMIT_S", 0.1)
    with locked(database), pytest.raises(DatabaseBusy) as refused:
        create_key(database, "a", GROUPS)
    assert "database is locked" in refused.value.reason


def test_what_can_not_succeed_later_is_no_busy_database(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    with pytest.raises(OperationalError, match="no such table"), database.write() as session:
        session.execute(text("INSERT INTO unknown VALUES (1)"))
    database.dispose()


def test_a_capture_whose_commit_was_not_heard_of_is_repeated_without_a_second_charge(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    lost = [DatabaseBusy("the connection broke", began=True, undone=False)]

    def lose_the_answer(point: str) -> None:
        if point == "after-capture-commit" and lost:
            raise lost.pop()

    ledger = Ledger(database, "me", crash_hook=lose_the_answer)
    ledger.hold(call("c1", key.id))
    with pytest.raises(DatabaseBusy):
        capture(ledger, "c1", [result("r1")])
    capture(ledger, "c1", [result("r1")])
    assert len(report.entries(database)) == 1
    assert clean(database)


@ON_POSTGRESQL
def test_a_capture_that_is_cut_off_is_repeated(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    cuts = [1]

    def cut_connections(point: str) -> None:
        if point == "before-capture-commit" and cuts:
            cuts.pop()
            with connect(database) as other:
                others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                other.execute(f"{others} AND pid <> pg_backend_pid()".encode())

    ledger = Ledger(database, "me", crash_hook=cut_connections)
    ledger.hold(call("c1", key.id))
    with pytest.raises(DatabaseBusy) as cut:
        capture(ledger, "c1", [result("r1")])
    assert cut.value.began
    assert report.entries(database) == []
    capture(ledger, "c1", [result("r1")])
    assert len(report.entries(database)) == 1
    assert clean(database)


@ON_POSTGRESQL
async def test_a_locked_row_is_waited_for_and_not_for_ever(database: Database) -> None:
    key, secret = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    with locked_key(database, key.id):
        hold = asyncio.create_task(ledger.in_writer(ledger.hold, call("c1", key.id)))
        assert await database.in_reader(authenticate, database, secret) == key
        with pytest.raises(DatabaseBusy) as refused:
            await hold
    assert "lock timeout" in refused.value.reason
    await ledger.in_writer(ledger.hold, call("c2", key.id))
    assert report.balances(database)[0].held_units == 1000


@pytest.mark.slow
@ON_POSTGRESQL
async def test_the_restart_of_postgresql_is_survived(database: Database, cluster: Cluster) -> None:
    key, secret = create_key(database, "a", GROUPS, budget=2000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    await database.in_reader(authenticate, database, secret)
    cluster.stop()
    try:
        capturing = asyncio.create_task(ledger.retry_in_writer(capture, ledger, "c1", [result("r1")]))
        with pytest.raises(DatabaseBusy):
            await database.in_reader(authenticate, database, secret)
        with pytest.raises(DatabaseBusy):
            await ledger.in_writer(ledger.hold, call("c2", key.id))
        assert not capturing.done()
    finally:
        cluster.start()
    await capturing
    assert await database.in_reader(authenticate, database, secret) == key
    await ledger.in_writer(ledger.hold, call("c3", key.id))
    assert report.balances(database)[0].held_units == 1000
    assert clean(database)
