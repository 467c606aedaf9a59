"""Keys, holds and charges on a real database, with real threads, processes and SIGKILLs."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from server.accounts import report
from server.accounts.db import Database
from server.accounts.keys import any_keys, authenticate, create_key, list_keys, revoke_key
from server.accounts.ledger import Call, HoldLost, InsufficientBudget, Ledger, StoredResult
from server.accounts.money import format_money, parse_money
from server.accounts.tables import Base

GROUPS = frozenset({"alpha", "beta"})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'darkroom.db'}"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    database.migrate()
    yield database
    database.dispose()


def result(name: str) -> StoredResult:
    return StoredResult(f"{name}.png", "image/png", 8, 8, 100, "0" * 64, 0)


def call(call_id: str, key_id: str, price: int = 1000) -> Call:
    return Call(call_id, key_id, "images.generations", "alpha", price)


def clean(database: Database) -> bool:
    return report.check(database, lambda _: True) == []


@given(st.integers(0, 10**12))
def test_money_survives_being_written_and_read(units: int) -> None:
    assert parse_money(format_money(units)) == units


@pytest.mark.parametrize("text", ["-1", "0.00001", "NaN", "inf", "", "ten", "1e20"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_money(text)


def test_money_is_shown_with_two_decimals_or_what_it_needs() -> None:
    assert [format_money(n) for n in (1000, 2500, 1, 0, -5000)] == ["0.10", "0.25", "0.0001", "0.00", "-0.50"]


def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    with database.write() as session:
        context = MigrationContext.configure(session.connection())
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    create_key(database, "a", GROUPS)
    database.migrate()
    assert any_keys(database)


def test_a_secret_opens_its_key_and_is_not_stored(database: Database, url: str) -> None:
    key, secret = create_key(database, "a", GROUPS)
    assert authenticate(database, secret) == key
    assert authenticate(database, f"{secret}x") is None
    assert secret.encode() not in Path(url.removeprefix("sqlite:///")).read_bytes()


def test_expired_and_revoked_keys_open_nothing(database: Database) -> None:
    _, old = create_key(database, "old", GROUPS, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    revoked, secret = create_key(database, "revoked", GROUPS)
    assert revoke_key(database, revoked.id) is not None
    assert revoke_key(database, "key_none") is None
    assert authenticate(database, old) is authenticate(database, secret) is None
    assert len(list_keys(database)) == 2


def test_readers_can_not_write(database: Database) -> None:
    with database.read() as session, pytest.raises(DatabaseError):
        session.execute(text("DELETE FROM keys"))


def test_sqlite_is_as_safe_as_it_can_be(database: Database) -> None:
    with database.write() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA synchronous")) == 2
        assert session.scalar(text("PRAGMA foreign_keys")) == 1


def test_a_captured_call_is_charged_once(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=5000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    assert report.balances(database)[0].held == 1000
    assert ledger.capture("c1", [result("r1")]) == 1000
    with pytest.raises(HoldLost):
        ledger.capture("c1", [result("r2")])
    assert not ledger.void("c1", "late")
    assert report.balances(database)[0].available == 4000
    assert ledger.find_result("r1.png") == result("r1")
    assert ledger.result_names() == {"r1.png"}
    assert clean(database)


def test_a_voided_hold_frees_its_money_and_writes_no_entry(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    with pytest.raises(InsufficientBudget):
        ledger.hold(call("c2", key.id))
    assert ledger.void("c1", "engine_failed")
    ledger.hold(call("c2", key.id))
    assert report.entries(database, None, 10) == []


def test_nobody_captures_anothers_hold(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    Ledger(database, "me").hold(call("c1", key.id))
    with pytest.raises(HoldLost):
        Ledger(database, "you").capture("c1", [result("r1")])
    assert Ledger(database, "you").find_result("r1.png") is None
    assert report.entries(database, None, 10) == []


@pytest.mark.parametrize("change", ["UPDATE entries SET amount = 0", "DELETE FROM entries"])
def test_entries_can_not_be_changed(database: Database, change: str) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    ledger.capture("c1", [result("r1")])
    with pytest.raises(DatabaseError, match="append-only"), database.write() as session:
        session.execute(text(change))


def test_leases_run_out_unless_they_are_renewed(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    dying, living = Ledger(database, "dying", lease_s=0.05), Ledger(database, "living", lease_s=0.05)
    dying.hold(call("c1", key.id))
    living.hold(call("c2", key.id))
    time.sleep(0.1)
    patient = Ledger(database, "living", lease_s=60)
    assert patient.renew() == 1
    assert not clean(database)
    assert patient.sweep() == 1
    assert patient.capture("c2", [result("r2")]) == 1000
    assert clean(database)


def test_the_check_finds_what_is_wrong(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    for name in ("c1", "c2"):
        ledger.hold(call(name, key.id))
        ledger.capture(name, [result(name)])
    with database.write() as session:
        session.execute(text("DELETE FROM results WHERE call_id = 'c1'"))
        session.execute(text("UPDATE holds SET price = 1, state = 'void' WHERE call_id = 'c2'"))
    problems = "\n".join(report.check(database, lambda _: False))
    for expected in (
        "c1 is captured and has no result",
        "c2 is void and has an entry",
        "c2 has an entry of another price",
    ):
        assert expected in problems
    assert "c2.png has no file" in problems


def test_many_threads_spend_the_last_of_a_budget_and_not_more(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=10_000)
    ledger = Ledger(database, "me")
    captured: list[str] = []

    def spend(name: str) -> None:
        try:
            ledger.hold(call(name, key.id))
        except InsufficientBudget:
            return None
        if name.endswith("7"):
            ledger.void(name, "engine_failed")
            return spend(f"{name}x")
        ledger.capture(name, [result(name)])
        captured.append(name)
        return None

    threads = [threading.Thread(target=spend, args=(f"c{i}",)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captured) == 10
    assert report.balances(database)[0].available == 0
    assert clean(database)


SPENDER = """
import os, signal, sys, uuid
from server.accounts.db import Database
from server.accounts.ledger import *
url, key_id, crash_at, calls = sys.argv[1:5]
def reach(point):
    if point == crash_at: os.kill(os.getpid(), signal.SIGKILL)
ledger = Ledger(Database(url), uuid.uuid4().hex, reach=reach)
for _ in range(int(calls)):
    name = uuid.uuid4().hex
    try: ledger.hold(Call(name, key_id, "e", "m", 1000))
    except InsufficientBudget: continue
    ledger.capture(name, [StoredResult(name, "image/png", 8, 8, 1, "0", 0)])
    print(name, flush=True)
"""


def spender(url: str, key_id: str, crash_at: str = "", calls: int = 1) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SPENDER, url, key_id, crash_at, str(calls)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("point", "charged"), [("before-capture-commit", 0), ("after-capture-commit", 1)])
def test_a_kill_around_the_commit_leaves_all_or_nothing(database: Database, url: str, point: str, charged: int) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    assert spender(url, key.id, point).wait(timeout=30) == -signal.SIGKILL
    assert Ledger(database, "next").void_orphans() == 1 - charged
    assert len(report.entries(database, None, 10)) == charged
    assert len(Ledger(database, "next").result_names()) == charged
    assert clean(database)


def test_processes_that_are_killed_at_random_never_overspend_or_lose_money(database: Database, url: str) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=60_000)
    processes = [spender(url, key.id, calls=40) for _ in range(3)]
    time.sleep(random.uniform(1.0, 1.5))
    for process in processes[:2]:
        process.kill()
    told = [process.communicate(timeout=60)[0].split() for process in processes]
    spender(url, key.id, calls=60).wait(timeout=60)
    ledger = Ledger(database, "next")
    stuck = ledger.void_orphans()
    balance = report.balances(database)[0]
    assert stuck <= 2
    assert balance.held == 0
    assert 0 <= (balance.available or 0) <= stuck * 1000
    assert {name for names in told for name in names} <= ledger.result_names()
    assert clean(database)
