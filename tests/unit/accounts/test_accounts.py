"""Keys, holds and charges on a real database, with real threads."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DatabaseError, IntegrityError, NoResultFound

from server.accounts import report, results
from server.accounts.db import Database
from server.accounts.keys import authenticate, create_key, has_keys, list_keys, revoke_key, update_key
from server.accounts.ledger import BilledCall, HoldLost, InsufficientBudget, Ledger
from server.accounts.results import ResultStore
from server.accounts.schema import table_names
from server.accounts.stored_files import StoredFiles
from server.accounts.tables import Base, ChatUsageRow
from server.accounts.usage import UsageFilter, usage
from server.money import format_money, parse_money
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result, server

ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@given(st.integers(0, 10**12))
def test_money_is_parsed_as_it_was_formatted(units: int) -> None:
    assert parse_money(format_money(units)) == units


@pytest.mark.parametrize("text", ["-1", "0.00001", "NaN", "inf", "", "ten", "1e20"])
def test_an_invalid_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_money(text)


def test_money_is_formatted_with_two_decimals_or_as_many_as_it_needs() -> None:
    assert [format_money(n) for n in (1000, 2500, 1, 0, -5000)] == ["0.10", "0.25", "0.0001", "0.00", "-0.50"]


def test_the_migrations_make_the_tables_of_the_models(database: Database) -> None:
    assert table_names() >= Base.metadata.tables.keys()  # all are imported now
    with database.write() as session:
        context = MigrationContext.configure(session.connection())
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    create_key(database, "a", GROUPS)
    database.migrate()
    assert has_keys(database)


@ON_SQLITE
def test_a_secret_authenticates_its_key_and_is_not_stored(database: Database, tmp_path: Path) -> None:
    key, secret = create_key(database, "findable", GROUPS)
    assert authenticate(database, secret) == key
    assert authenticate(database, f"{secret}x") is None
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # the newest rows are in the WAL
    assert b"findable" in stored
    assert secret.encode() not in stored


def test_expired_and_revoked_keys_do_not_authenticate(database: Database) -> None:
    _, old = create_key(database, "old", GROUPS, limits={"expires_at": datetime.now(UTC) - timedelta(seconds=1)})
    revoked, secret = create_key(database, "revoked", GROUPS)
    assert revoke_key(database, revoked.id, by="test") is not None
    assert revoke_key(database, "key_none", by="test") is None
    assert authenticate(database, old) is authenticate(database, secret) is None
    assert len(list_keys(database)) == 2


def test_readers_can_not_write(database: Database) -> None:
    with database.read() as session, pytest.raises(DatabaseError):
        session.execute(text("DELETE FROM keys"))


def test_a_read_sees_one_snapshot(database: Database) -> None:
    with database.read() as session:
        before = session.scalar(text("SELECT count(*) FROM keys"))
        create_key(database, "a", GROUPS)
        assert session.scalar(text("SELECT count(*) FROM keys")) == before


@ON_SQLITE
def test_readers_never_checkpoint(database: Database) -> None:
    with database.read() as session:
        assert session.scalar(text("PRAGMA wal_autocheckpoint")) == 0


@ON_SQLITE
def test_sqlite_uses_the_durable_settings(database: Database) -> None:
    with database.write() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA synchronous")) == 2
        assert session.scalar(text("PRAGMA foreign_keys")) == 1


def test_a_captured_call_is_charged_once(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=5000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    assert report.balances(database)[0].held_units == 1000
    capture(ledger, "c1", [result("r1")])
    capture(ledger, "c1", [result("r2")])  # repeated: nothing more is written
    with pytest.raises(HoldLost):
        capture(ledger, "c1", [result("r2")], price=999)
    assert not ledger.void("c1", "late")
    assert report.balances(database)[0].available_units == 4000
    assert ResultStore(database).find_file("r1.png") == result("r1")
    assert ResultStore(database).recorded(["r1.png", "r2.png"]) == {"r1.png"}
    assert clean(database)


def test_a_voided_hold_releases_its_money_and_writes_no_entry(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    with pytest.raises(InsufficientBudget):
        ledger.hold(call("c2", key.id))
    assert ledger.void("c1", "engine_failed")
    ledger.hold(call("c2", key.id))
    assert report.entries(database) == []


def test_a_call_without_images_is_charged_what_it_cost_of_what_it_holds(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    ledger.hold(BilledCall("chat_1", key.id, "chat.completions", "chatty", 800))
    counts = {"chats": 1, "prompt_tokens": 40, "completion_tokens": 2}
    tokens = ChatUsageRow(key_id=key.id, model="chatty", day="2026-11-26", **counts)
    for price in (-1, 801):
        with pytest.raises(ValueError, match="holds 800 units"):
            ledger.capture("chat_1", price)
    ledger.capture("chat_1", 123, [lambda session: session.add(tokens)])
    assert [(entry.call_id, entry.amount_units) for entry in report.entries(database)] == [("chat_1", 123)]
    balance = report.balances(database)[0]
    assert (balance.spent_units, balance.held_units, balance.available_units) == (123, 0, 877)
    assert usage(database, UsageFilter(), [])[0].amount == 123
    assert clean(database)


def test_a_free_call_needs_no_money_and_has_an_entry(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=0)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id, price=0))
    capture(ledger, "c1", [result("r1")], price=0)
    assert [entry.amount_units for entry in report.entries(database)] == [0]
    assert clean(database)


def test_a_key_that_does_not_exist_spends_nothing(database: Database) -> None:
    with pytest.raises(NoResultFound):
        Ledger(database, "me").hold(call("c1", "key_none"))


def test_a_capture_that_fails_is_rolled_back_and_keeps_the_hold(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    with pytest.raises(IntegrityError):
        capture(ledger, "c1", [result("same"), result("same")])
    assert report.entries(database) == []
    assert ResultStore(database).recorded(["r1.png", "r2.png"]) == set()
    capture(ledger, "c1", [result("r1")])
    assert clean(database)


def test_a_starting_server_voids_the_holds_of_the_last_one_and_keeps_its_own(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    Ledger(database, "last", lease_s=0).hold(call("c1", key.id))
    server(database, "this")
    this = Ledger(database, "this")
    this.hold(call("c2", key.id))
    assert this.void_orphans() == 1
    with pytest.raises(HoldLost):
        capture(Ledger(database, "last"), "c1", [result("r1")])
    capture(this, "c2", [result("r2")])
    assert clean(database)


def test_a_hold_of_another_owner_can_not_be_captured(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    Ledger(database, "me").hold(call("c1", key.id))
    with pytest.raises(HoldLost):
        capture(Ledger(database, "you"), "c1", [result("r1")])
    assert ResultStore(database).find_file("r1.png") is None
    assert report.entries(database) == []


@pytest.mark.parametrize("change", ["UPDATE entries SET amount = 0", "DELETE FROM entries"])
def test_entries_can_not_be_changed(database: Database, change: str) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("r1")])
    with pytest.raises(DatabaseError, match="append-only"), database.write() as session:
        session.execute(text(change))


def test_leases_expire_unless_they_are_renewed(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    dying, living = Ledger(database, "dying", lease_s=0.05), Ledger(database, "living", lease_s=0.05)
    dying.hold(call("c1", key.id))
    living.hold(call("c2", key.id))
    time.sleep(0.1)
    renewing = Ledger(database, "living", lease_s=60)
    assert renewing.renew({"c2", "c9"}) == 1
    assert not clean(database)
    assert [renewing.sweep({"c2"}), renewing.sweep({"c2"})] == [0, 1]  # it was expired at the sweep before, too
    capture(renewing, "c2", [result("r2")])
    assert clean(database)


def test_the_hold_of_an_ended_call_expires_although_its_server_runs(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me", lease_s=0.05)
    ledger.hold(call("c1", key.id))  # then the disk is full, and the hold can't be voided
    time.sleep(0.1)
    assert ledger.renew([]) == 0
    assert [ledger.sweep([]), ledger.sweep([])] == [0, 1]
    ledger.hold(call("c2", key.id))


def test_the_check_finds_inconsistencies(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    for name in ("img_1", "c2"):
        ledger.hold(call(name, key.id))
        capture(ledger, name, [result(name)])
    with database.write() as session:
        session.execute(text("DELETE FROM results WHERE call_id = 'img_1'"))
        session.execute(text("UPDATE holds SET price = 1, state = 'void' WHERE call_id = 'c2'"))
        session.execute(text("UPDATE keys SET settled = 2001"))
    problems = "\n".join(report.check(database) + results.check(database, lambda _: False))
    for expected in (
        f"key {key.id} has a settled total of 2001 and charges of 2000",
        "img_1 is captured and has no result",
        "c2 is void and has an entry",
        "c2 has an entry of another price",
    ):
        assert expected in problems
    assert "c2.png has no file" in problems


def test_many_threads_spend_a_budget_and_not_more(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=10_000)
    ledger = Ledger(database, "me")
    captured: list[str] = []
    available: list[int] = []

    def spend(name: str) -> None:
        try:
            ledger.hold(call(name, key.id))
        except InsufficientBudget:
            return None
        if name.endswith("7"):
            ledger.void(name, "engine_failed")
            return spend(f"{name}x")
        available.append(report.balances(database)[0].available_units or 0)
        capture(ledger, name, [result(name)])
        captured.append(name)
        return None

    threads = [threading.Thread(target=spend, args=(f"c{i}",)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captured) == 10
    assert min(available) == 0
    assert report.balances(database)[0].available_units == 0
    assert clean(database)


def test_old_results_expire_and_their_charges_stay(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("r1")])
    assert ResultStore(database).expired(60, 10) == []
    assert ResultStore(database).recorded(["r1.png"]) == {"r1.png"}
    assert ResultStore(database).expired(-1, 10) == ["r1.png"]
    StoredFiles(database).mark_trashed(["r1.png"], expired=True)
    assert ResultStore(database).expired(-1, 10) == []
    assert ResultStore(database).recorded(["r1.png", "r2.png"]) == set()
    assert ResultStore(database).find_file("r1.png") is None
    assert report.check(database) + results.check(database, lambda _: False) == []
    assert report.balances(database)[0].spent_units == 1000


def test_changing_a_key_leaves_its_other_fields(database: Database) -> None:
    key, secret = create_key(database, "a", GROUPS, budget=1000)
    assert update_key(database, "key_none", {"budget": 1}, by="test") is None
    assert update_key(database, key.id, {"budget": 5000, "per_minute": 3}, by="test") is not None
    changed = authenticate(database, secret)
    assert changed == replace(key, budget=5000, per_minute=3)
    assert update_key(database, key.id, {"budget": None}, by="test") == replace(key, budget=None, per_minute=3)
    Ledger(database, "me").hold(call("c1", key.id))
    with pytest.raises(ValueError, match=r"0\.10 CNY already"):
        update_key(database, key.id, {"budget": 999}, by="test")


def test_a_hold_costs_the_same_however_many_charges_there_are(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=5000)
    update_key(database, key.id, {"monthly_budget": 3000}, by="test")
    ledger = Ledger(database, "me")
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    for name in ("c1", "c2"):
        ledger.hold(call(name, key.id))
        capture(ledger, name, [result(name)])
    event.listen(Engine, "before_cursor_execute", note)
    try:
        ledger.hold(call("c3", key.id))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert any("holds" in statement for statement in statements)
    assert not any("entries" in statement for statement in statements)
    with pytest.raises(InsufficientBudget):
        ledger.hold(call("c4", key.id))
