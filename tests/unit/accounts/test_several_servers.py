"""Servers that share a database: which of them run, what is given up, and what no server's own clock decides."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from server.accounts.calls import CallId, CallStore
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import Ledger
from server.accounts.responses import ResponseStore, StoredResponse
from server.accounts.results import ResultStore
from server.accounts.schema import newest_schema
from server.errors import StartError
from server.housekeeping import InUse, lock_database
from server.settings import Settings
from tests.unit.accounts.conftest import BOTH
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result, server

ON_POSTGRESQL = pytest.mark.parametrize("url", BOTH[1:], indirect=True)


def test_servers_that_start_at_once_on_an_empty_database_all_start(empty_url: str) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(3)

    def start() -> None:
        database = Database(empty_url)
        try:
            barrier.wait(30)
            database.migrate()
        except BaseException as error:
            failures.append(error)
        finally:
            database.dispose()

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_sqlite_file_has_one_server(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "books.db"
    settings = [Settings(home=tmp_path / home, database=f"sqlite:///{file}") for home in ("one", "two")]
    first = lock_database(settings[0])
    assert first is not None
    with first, pytest.raises(InUse, match=r"already uses the database .*books\.db"):
        lock_database(settings[1])
    second = lock_database(settings[1])
    assert second is not None
    second.close()


@ON_POSTGRESQL
def test_nothing_is_migrated_beside_a_running_server(database: Database) -> None:
    running = server(database, "old")
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0016'"))
    with pytest.raises(StartError, match=r"1 server.* of an older version use the database"):
        database.migrate()
    assert database.schema_version() == "0016"
    with database.write() as session:
        session.execute(text(f"UPDATE alembic_version SET version_num = '{newest_schema()}'"))
    database.migrate()  # of the same version, any number may start
    running.leave()


@ON_POSTGRESQL
def test_the_oldest_live_server_does_the_chores(database: Database) -> None:
    first, second = server(database, "first"), server(database, "second", lease_s=0.05)
    assert [first.runs_maintenance(), second.runs_maintenance()] == [True, False]
    first.leave()
    assert [first.runs_maintenance(), second.runs_maintenance()] == [False, True]
    third = server(database, "third")
    time.sleep(0.1)
    assert third.runs_maintenance()  # the second does not renew its lease any more
    second._lease_s = 600.0
    assert second.renew()
    assert third.runs_maintenance() is False


@ON_POSTGRESQL
def test_a_server_is_dead_once_its_lease_had_run_out_twice(database: Database) -> None:
    here, there = server(database, "here", "http://here:1"), server(database, "there", "http://there:1", lease_s=0.05)
    time.sleep(0.1)
    assert here.remove_dead() == 0
    there._lease_s = 600.0
    assert there.renew()
    assert here.remove_dead() == 0  # it was only slow
    there._lease_s = 0.05
    assert there.renew()
    time.sleep(0.1)
    assert [here.remove_dead(), here.remove_dead()] == [0, 1]
    assert here.find("there") is None
    assert not there.renew()
    found = here.find("there")
    assert found is not None
    assert found.url == "http://there:1"


@ON_POSTGRESQL
def test_a_server_that_starts_again_at_its_address_gives_up_what_it_had_left_behind(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=2000)
    server(database, "before", "http://a:1")
    server(database, "sibling", "http://b:1")
    for owner in ("before", "sibling"):
        Ledger(database, owner).hold(call(f"of-{owner}", key.id))
    server(database, "after", "http://a:1")
    assert Ledger(database, "after").void_orphans() == 1
    capture(Ledger(database, "sibling"), "of-sibling", [result("r1")])
    assert clean(database)


@ON_POSTGRESQL
def test_what_a_sibling_runs_is_left_alone(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    server(database, "here")
    server(database, "there")
    store, ledger = CallStore(database, "there", 60), Ledger(database, "there")
    call_id = CallId("c1", key.id, "images.generations", "f", None)
    ledger.hold(call("c1", key.id), [store.begin_write(call_id)])
    response = StoredResponse("r1", key.id, None, "in_progress", False, {}, 1)
    ResponseStore(database, "there").begin(response, [])
    ledger.void("c1", "content_policy")  # its failure is recorded in another transaction, a moment later
    here = CallStore(database, "here", 60)
    assert here.fail_orphans() == 0
    assert Ledger(database, "here").void_orphans() == 0
    assert ResponseStore(database, "here").finish_orphans() == 0
    found = here.find("c1", key.id)
    assert found is not None
    assert found.state == "running"


@ON_POSTGRESQL
def test_a_servers_own_clock_decides_nothing(database: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = create_key(database, "a", GROUPS)
    Ledger(database, "right", lease_s=60).hold(call("c1", key.id))
    real: Callable[[], float] = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)  # of the other server's machine
    ahead = Database(url)
    ahead.migrate()
    try:
        ledger, calls = Ledger(ahead, "ahead"), CallStore(ahead, "ahead", retention_s=600)
        assert [ledger.sweep([]), ledger.sweep([])] == [0, 0]
        ledger.hold(call("c2", key.id), [calls.begin_write(CallId("c2", key.id, "e", "f", "k"))])
        written = calls.find("c2", key.id)
        assert written is not None
        assert abs(written.created_at - real()) < 600
        assert calls.delete_expired() == 0
    finally:
        ahead.dispose()


def test_what_is_deleted_goes_in_pages(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger, calls = Ledger(database, "me"), CallStore(database, "me", retention_s=0)
    for i in range(5):
        ledger.hold(call(f"c{i}", key.id), [calls.begin_write(CallId(f"c{i}", key.id, "e", f"f{i}", None))])
        capture(ledger, f"c{i}", [result(f"r{i}")], calls.success_write(f"c{i}", {}, delivered=True))
    assert [calls.delete_expired(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert [len(ResultStore(database).expired(-1, limit)) for limit in (2, 9)] == [2, 5]
    assert clean(database)
