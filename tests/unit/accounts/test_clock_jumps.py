"""The system's clock is set while the server runs, by days and both ways: nothing that runs is given up, nothing that a
retry asks for is forgotten, nothing is deleted early."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from server.accounts import report
from server.accounts.calls import CallId, CallStore
from server.accounts.claims import ClaimLimits, ClaimStore
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import InsufficientBudget, Ledger
from server.accounts.report import balances, entries
from server.accounts.results import ResultStore
from server.accounts.stored_files import StoredFiles
from server.accounts.usage import months_spent
from server.backends.storage import LocalStorage
from server.flows.operators.keys import read_money
from server.state import call_limits
from server.state.call_limits import WINDOW_S, CallRate
from tests.unit.accounts.conftest import BOTH
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result, server

DAYS_S = 30 * 86_400.0
Jump = Callable[[float], None]
ON_POSTGRESQL = pytest.mark.parametrize("url", BOTH[1:], indirect=True)


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the system's clock, as this process sees it."""
    real = time.time
    return lambda by_s: monkeypatch.setattr(time, "time", lambda: real() + by_s)


@pytest.mark.parametrize("by_s", [DAYS_S, -DAYS_S])
def test_a_running_call_keeps_its_hold_and_is_charged_once(database: Database, jump: Jump, by_s: float) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me", lease_s=60)
    ledger.hold(call("c1", key.id))
    jump(by_s)
    assert [ledger.sweep({"c1"}) for _ in range(3)] == [0, 0, 0]
    assert ledger.renew({"c1"}) == 1
    capture(ledger, "c1", [result("r1")])
    ledger.hold(call("c2", key.id))
    jump(0)
    assert [ledger.sweep({"c2"}) for _ in range(3)] == [0, 0, 0]
    capture(ledger, "c2", [result("r2")])
    assert len(entries(database)) == 2
    assert clean(database)


@pytest.mark.parametrize("by_s", [DAYS_S, -DAYS_S])
def test_what_ended_badly_gives_its_money_back_all_the_same(database: Database, jump: Jump, by_s: float) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me", lease_s=0.05)
    ledger.hold(call("c1", key.id))  # then it could not be voided
    jump(by_s)
    time.sleep(0.1)
    assert [ledger.sweep([]), ledger.sweep([])] == [0, 1]
    assert balances(database)[0].held_units == 0


def spend(database: Database, ledger: Ledger, key_id: str, names: str) -> list[str]:
    """The calls of these names that their budget covers. Each costs 1000."""
    charged = []
    for name in names:
        try:
            ledger.hold(call(name, key_id))
        except InsufficientBudget:
            continue
        capture(ledger, name, [result(name)])
        charged.append(name)
    assert clean(database)
    return charged


@pytest.mark.parametrize("by_s", [400 * 86_400.0, 13 * DAYS_S, -400 * 86_400.0, -13 * DAYS_S])
def test_a_charge_at_another_time_is_of_that_months_budget_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    clock = [datetime(2026, 11, 25, tzinfo=UTC).timestamp()]
    monkeypatch.setattr(database.clock, "now", lambda: clock[0])
    key, _ = create_key(database, "a", GROUPS, limits={"monthly_budget": 3000})
    ledger = Ledger(database, "me")
    assert spend(database, ledger, key.id, "a") == ["a"]
    clock[0] += by_s
    assert spend(database, ledger, key.id, "b") == ["b"]
    assert months_spent(database) == {key.id: 1000}
    clock[0] -= by_s
    assert spend(database, ledger, key.id, "cdefgh") == ["c", "d"]
    assert months_spent(database) == {key.id: 3000}
    clock[0] += by_s
    assert spend(database, ledger, key.id, "ijk") == ["i", "j"]
    assert read_money(database)[key.id].spent_this_month == 3000


def test_the_check_compares_each_month_with_its_charges(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    for name, day in (
        ("a", datetime(2026, 10, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("b", datetime(2026, 11, 1, tzinfo=UTC)),
    ):
        monkeypatch.setattr(database.clock, "now", day.timestamp)
        assert spend(database, ledger, key.id, name) == [name]
    with database.write() as session:
        session.execute(text("UPDATE key_months SET settled = 7 WHERE month < :november"), {"november": 1793491200})
        session.execute(text("DELETE FROM key_months WHERE month = :november"), {"november": 1793491200})
    assert report.check(database) == [
        f"key {key.id} has a settled total of 7 and charges of 1000 in 2026-10",
        f"key {key.id} has a settled total of 0 and charges of 1000 in 2026-11",
    ]


@ON_POSTGRESQL
def test_what_a_dead_server_wrote_while_the_databases_clock_was_ahead_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=2000)
    real = database.lease_now
    monkeypatch.setattr(database, "lease_now", lambda session: real(session) + 400 * 86_400)
    dead, living = server(database, "dead"), server(database, "living")
    Ledger(database, "dead").hold(call("c1", key.id))
    Ledger(database, "living").hold(call("c2", key.id))
    gone = CallId("c1", key.id, "images.generations", "print", "idem-1")
    ClaimStore(database, "dead").begin(gone, ClaimLimits(8, 1), find_equal=True)
    ClaimStore(database, "dead").end("c1")
    monkeypatch.setattr(database, "lease_now", real)
    assert living.renew()
    assert Ledger(database, "living").renew({"c2"}) == 1
    assert living.runs_maintenance()
    assert living.others() == []
    assert [living.remove_dead(), living.remove_dead()] == [0, 1]
    assert dead.find("living") is not None
    ledger = Ledger(database, "living")
    assert ledger.void_orphans() == 1
    again = CallId("c3", key.id, "images.generations", "print", "idem-1")
    assert ClaimStore(database, "living").begin(again, ClaimLimits(8, 1), find_equal=True).begun == 1
    ClaimStore(database, "living").delete_ended()
    with database.read() as session:
        assert session.scalars(text("SELECT id FROM claims")).all() == ["c3"]
    capture(ledger, "c2", [result("r2")])
    assert clean(database)


@ON_POSTGRESQL
def test_a_hold_of_the_time_when_the_databases_clock_was_ahead_lapses(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    real = database.lease_now
    monkeypatch.setattr(database, "lease_now", lambda session: real(session) + 400 * 86_400)
    ledger.hold(call("c1", key.id))  # then it could not be voided
    monkeypatch.setattr(database, "lease_now", real)
    assert [ledger.sweep([]), ledger.sweep([])] == [0, 1]
    assert balances(database)[0].available_units == 1000


@ON_POSTGRESQL
def test_if_the_databases_clock_was_set_servers_have_time_to_renew(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = create_key(database, "a", GROUPS)
    here, there = Ledger(database, "here"), Ledger(database, "there")
    there.hold(call("c1", key.id))
    there.hold(call("c2", key.id))
    real = database.lease_now
    monkeypatch.setattr(database, "lease_now", lambda session: real(session) + DAYS_S)
    assert here.sweep([]) == 0
    assert there.renew({"c1"}) == 1  # c2 has no server any more
    assert here.sweep([]) == 1
    capture(there, "c1", [result("r1")])
    assert clean(database)


@pytest.mark.parametrize("by_s", [DAYS_S, -DAYS_S])
def test_a_retry_finds_its_call(database: Database, jump: Jump, by_s: float) -> None:
    key, _ = create_key(database, "a", GROUPS)
    store, ledger = CallStore(database, "me", retention_s=3600), Ledger(database, "me")
    call_id = CallId("c1", key.id, "images.generations", "print", "idem-1")
    ledger.hold(call("c1", key.id), [store.begin_write(call_id)])
    capture(ledger, "c1", [result("r1")], store.success_write("c1", {}, delivered=False))
    jump(by_s)
    store.delete_expired()
    assert store.find_keyed(key.id, "images.generations", "idem-1") is not None
    assert len(store.find_by_fingerprint(key.id, "images.generations", "print", 60)) == 1
    assert ResultStore(database).expired(3600, 10) == []


def test_a_file_that_is_not_recorded_yet_is_kept(database: Database, jump: Jump) -> None:
    files = StoredFiles(database)
    files.name_new("png")
    jump(DAYS_S)
    assert files.unneeded(3600, 10) == []


def test_a_thumbnail_is_kept_for_its_time(tmp_path: Path, jump: Jump) -> None:
    storage = LocalStorage(tmp_path)
    storage.write(f"{'a' * 32}.w160", b"pixels")
    jump(DAYS_S)
    assert list(storage.older(3600)) == [[]]


def test_calls_a_minute_are_counted_by_a_clock_that_is_not_set(jump: Jump, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(call_limits.time, "monotonic", lambda: now[0])
    rate = CallRate()
    assert [rate.begin("a", 2) for _ in range(3)] == [True, True, False]
    assert (rate.remaining("a", 2), rate.remaining("b", 2)) == (0, 2)
    jump(DAYS_S)
    assert not rate.begin("a", 2)
    jump(-DAYS_S)
    now[0] += WINDOW_S - 10
    assert (rate.begin("a", 2), rate.reset_s("a")) == (False, 10)
    now[0] += 10
    assert (rate.begin("a", 2), rate.remaining("a", 2), rate.reset_s("b")) == (True, 1, 0)
