"""Every time that is stored, when it lies ahead: the clock was ahead for one call and is right again, by an hour, a
month or a year, also after a restart of the server. Each column has its line in COLUMNS, which says what is done;
files have a test of their own."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Float, text

from server.accounts import report
from server.accounts.batches import Batch, BatchLine, BatchStore
from server.accounts.call_log import CallLog
from server.accounts.calls import CallId, CallStore, Failure
from server.accounts.conversations import Conversation, ConversationStore
from server.accounts.db import Database
from server.accounts.keys import LONGEST_OVERLAP_S, authenticate, create_key, rotate_key
from server.accounts.ledger import Ledger
from server.accounts.operators import LIFETIME_S, ConsoleSessions
from server.accounts.report import last_charges
from server.accounts.results import ResultStore
from server.accounts.stored_files import StoredFiles
from server.accounts.tables import Base
from server.accounts.usage import months_spent
from server.accounts.webhooks import WebhookStore
from server.backends.storage import LocalStorage
from server.clock import Clock
from server.flows.operators.keys import KeyAdmin
from server.schemas.keys import MAX_OVERLAP_S, CreateKey
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result

NOW = datetime(2026, 11, 26, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
AHEAD = [3600.0, 31 * DAY_S, 366 * DAY_S]
DAY_OF_RETRIES = DAY_S

SHOWN = "shown and listed by, and nothing more"
TESTED = "tested below"
ELSEWHERE = "test_clock_jumps.py: a lease that is longer than any has lapsed"
CHARGE = "append-only; the month of a charge is what its entry says"
COLUMNS = {
    "keys": {"created_at": SHOWN, "expires_at": "an operator's date; of days by the cautious clock",
             "revoked_at": "whether it is there", "previous_until": TESTED},
    "key_months": {"month": TESTED},
    "holds": {"lease_until": ELSEWHERE, "created_at": SHOWN, "settled_at": SHOWN},
    "entries": {"created_at": CHARGE},
    "calls": {"created_at": TESTED, "ended_at": TESTED},
    "call_log": {"created_at": TESTED},
    "results": {"created_at": TESTED, "deleted_at": "whether it is there"},
    "stored_files": {"written_at": TESTED, "trashed_at": TESTED},
    "responses": {"created_at": TESTED, "ended_at": "as of calls"},
    "conversations": {"created_at": SHOWN, "used_at": TESTED},
    "batches": {"created_at": TESTED, "expires_at": "a batch that was created ahead has expired",
                "cancelling_at": "whether it is there", "ended_at": SHOWN},
    "console_sessions": {"ends_at": TESTED},
    "claims": {"begun_at": ELSEWHERE, "ended_at": ELSEWHERE},
    "webhooks": {"next_at": TESTED},
    "gateways": {"started_at": "who is first, among those that renew their leases", "lease_until": ELSEWHERE},
    "catalogs": {"created_at": SHOWN},
    "refusals": {"created_at": SHOWN},
    "audit": {"created_at": SHOWN},
    "teams": {"created_at": SHOWN},
    "operators": {"created_at": SHOWN, "revoked_at": "whether it is there"},
    "chat_usage": {"day": "statistics, which show the day that was written down"},
}  # fmt: skip

SetClock = Callable[[float], None]


@pytest.fixture
def at(database: Database, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Sets every clock of the database, as a restart under another clock does."""

    def set_clocks(now: float) -> None:
        for name in ("now", "steady", "earliest"):
            monkeypatch.setattr(database.clock, name, lambda: now)
        monkeypatch.setattr(database, "lease_now", lambda _: now)

    set_clocks(NOW)
    return set_clocks


def test_every_stored_time_is_listed() -> None:
    stored = {
        table.name: {column.name for column in table.columns if isinstance(column.type, Float) or column.name == "day"}
        for table in Base.metadata.sorted_tables
    }
    numbers = {"call_log": {"seconds", "queue_s", "run_s"}}
    times = {table: columns - numbers.get(table, set()) for table, columns in stored.items()}
    assert {table: columns for table, columns in times.items() if columns} == {
        table: set(columns) for table, columns in COLUMNS.items()
    }


@pytest.mark.parametrize("ahead_s", [*AHEAD, *(-each for each in AHEAD)])
def test_budgets_are_those_of_the_entries(database: Database, at: SetClock, ahead_s: float) -> None:
    key, _ = create_key(database, "a", GROUPS, limits={"monthly_budget": 3000})
    ledger = Ledger(database, "me")
    for number, now in enumerate((NOW, NOW + ahead_s, NOW)):
        at(now)
        ledger.hold(call(f"c{number}", key.id))
        capture(ledger, f"c{number}", [result(f"r{number}")])
    same_month = sum(
        1 for entry in report.entries(database) if (entry.created_at.year, entry.created_at.month) == (2026, 11)
    )
    assert months_spent(database) == {key.id: 1000 * same_month}
    assert clean(database)


def test_the_check_mends_totals(database: Database, at: SetClock) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("r1")])
    with database.write() as session:
        session.execute(text("UPDATE key_months SET settled = 7"))
        session.execute(text("UPDATE keys SET settled = 8"))
        session.execute(text("INSERT INTO key_months (key_id, month, settled) VALUES (:key, 0, 5)"), {"key": key.id})
    assert len(report.check(database)) == 3
    assert report.repair_totals(database) == 3
    assert report.check(database) == []
    assert months_spent(database) == {key.id: 1000}
    assert report.repair_totals(database) == 0


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_a_retry_key_of_a_time_ahead_is_free_and_its_record_goes_in_time(
    database: Database, at: SetClock, ahead_s: float
) -> None:
    key, _ = create_key(database, "a", GROUPS)
    store = CallStore(database, "me", retention_s=DAY_OF_RETRIES)
    at(NOW + ahead_s)
    store.record_ended(CallId("c1", key.id, "images.generations", "print", "idem"), 200, {})
    at(NOW)
    found = store.find_keyed(key.id, "images.generations", "idem")
    assert (found is not None) is (ahead_s < DAY_OF_RETRIES)
    if found is None:
        store.record_ended(CallId("c2", key.id, "images.generations", "print", "idem"), 200, {})
    assert [each.call.id for each in store.find_by_fingerprint(key.id, "images.generations", "print", 60)] == (
        [] if found is not None else ["c2"]
    )
    assert store.delete_expired() == 0
    at(NOW + 2 * DAY_OF_RETRIES + 1)
    assert store.delete_expired() == (1 if found is not None else 2)


def test_a_clock_that_is_behind_deletes_nothing_early(database: Database, at: SetClock) -> None:
    """As after a start without a battery: all that is stored lies ahead."""
    key, _ = create_key(database, "a", GROUPS)
    store, ledger = CallStore(database, "me", retention_s=DAY_S), Ledger(database, "me")
    call_id = CallId("c1", key.id, "images.generations", "print", "idem")
    ledger.hold(call("c1", key.id), [store.begin_write(call_id)])
    capture(ledger, "c1", [result("r1")], store.success_write("c1", {}, delivered=False))
    at(0.0)
    assert (store.delete_expired(), ResultStore(database).expired(30 * DAY_S, 10)) == (0, [])
    at(NOW + 60)
    assert (store.delete_expired(), ResultStore(database).expired(30 * DAY_S, 10)) == (0, [])
    assert store.find_keyed(key.id, "images.generations", "idem") is not None


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_an_image_and_a_conversation_of_a_time_ahead_are_kept_for_their_time(
    database: Database, at: SetClock, ahead_s: float
) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger, results, conversations = Ledger(database, "me"), ResultStore(database), ConversationStore(database)
    at(NOW + ahead_s)
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("r1")])
    conversations.create(Conversation("conv_1", {}, int(NOW)), key.id, [])
    at(NOW)
    age_s = 30 * DAY_S
    assert (results.expired(age_s, 10), conversations.delete_expired(age_s)) == ([], 0)
    at(NOW + age_s - 60)
    assert (results.expired(age_s, 10), conversations.delete_expired(age_s)) == ([], 0)
    at(NOW + 2 * age_s + 60)
    assert (results.expired(age_s, 10), conversations.delete_expired(age_s)) == (["r1.png"], 1)


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_a_file_of_a_time_ahead_that_nothing_names_goes_in_its_time(
    database: Database, at: SetClock, ahead_s: float
) -> None:
    files, grace_s = StoredFiles(database), 600.0
    at(NOW + ahead_s)
    (name,) = files.name_new("png")
    at(NOW)
    assert files.unneeded(grace_s, 10) == []
    at(NOW + grace_s - 60)
    assert files.unneeded(grace_s, 10) == []
    at(NOW + 2 * grace_s + 60)
    assert files.unneeded(grace_s, 10) == [name]


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_what_came_into_the_trash_at_a_time_ahead_stays_there_for_its_time(
    database: Database, at: SetClock, ahead_s: float
) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger, files = Ledger(database, "me"), StoredFiles(database)
    (name,) = files.name_new("png")
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [replace(result("r1"), name=name)])
    at(NOW + ahead_s)
    files.mark_trashed([name], expired=True)
    at(NOW)
    assert files.outdated_trash(7 * DAY_S, 10) == []
    at(NOW + 7 * DAY_S - 60)
    assert files.outdated_trash(7 * DAY_S, 10) == []
    at(NOW + ahead_s + 14 * DAY_S + 60)
    assert files.outdated_trash(7 * DAY_S, 10) == [name]
    assert files.mark_put_back([name]) == 1
    assert clean(database)


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_a_thumbnail_of_a_time_ahead_goes_in_its_time(tmp_path: Path, ahead_s: float) -> None:
    storage, grace_s = LocalStorage(tmp_path), 600.0
    storage.write(name := f"{'a' * 32}.w160", b"pixels")
    file = storage.path(name)
    assert file is not None
    os.utime(file, times=(0, time.time() + ahead_s))
    assert [each for page in storage.older(grace_s) for each in page] == []
    assert abs(file.stat().st_mtime - time.time()) < grace_s
    os.utime(file, times=(0, time.time() - grace_s - 1))
    assert [each for page in storage.older(grace_s) for each in page] == [name]


@pytest.mark.parametrize("ahead_s", AHEAD[1:])
def test_a_batch_of_a_time_ahead_has_expired_and_goes_in_its_time(
    database: Database, at: SetClock, ahead_s: float
) -> None:
    key, _ = create_key(database, "a", GROUPS)
    batches = BatchStore(database, "me")
    at(NOW + ahead_s)
    created = NOW + ahead_s
    batches.create(
        Batch("b1", key.id, None, None, "", {}, 1, created, created + DAY_S), [BatchLine(0, "a", "/v1", "{}")]
    )
    assert batches.end_due("b1") is None
    at(NOW)
    assert batches.end_due("b1") == "expired"
    batches.end("b1", "expired")
    age_s = 30 * DAY_S
    assert batches.delete_older(age_s) == 0
    at(NOW + 2 * age_s + 60)
    assert batches.delete_older(age_s) == 1


def test_last_uses_are_none_of_a_time_ahead(database: Database, at: SetClock) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    for number, now in enumerate((NOW, NOW + 366 * DAY_S)):
        at(now)
        ledger.hold(call(f"c{number}", key.id))
        capture(ledger, f"c{number}", [result(f"r{number}")])
    at(NOW + 5)
    assert set(last_charges(database).values()) == {NOW}
    assert CallLog(database).last_used() == {}


@pytest.mark.parametrize("ahead_s", AHEAD)
def test_a_session_ends_after_its_lifetime_at_the_latest(database: Database, at: SetClock, ahead_s: float) -> None:
    sessions = ConsoleSessions(database)
    at(NOW + ahead_s)
    cookie = sessions.open("admin")
    at(NOW)
    assert sessions.subject(cookie) is None
    sessions.open("admin")
    at(NOW + ahead_s + 1)
    assert sessions.subject(cookie) is None  # it is deleted, too
    at(NOW + LIFETIME_S + 1)
    assert sessions.subject(cookie) is None


def test_a_webhook_that_failed_at_a_time_ahead_is_tried_now(database: Database, at: SetClock) -> None:
    key, _ = create_key(database, "a", GROUPS)
    calls, webhooks = CallStore(database, "me", retention_s=DAY_S), WebhookStore(database)
    call_id = CallId("c1", key.id, "images.generations", "print", None)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id), [calls.begin_write(call_id), webhooks.begin_write("c1", "https://a.example")])
    calls.fail(call_id, Failure("failed", 500, {}, replayable=False), delivered=False)
    webhooks.retry_at("c1", 1, NOW + 366 * DAY_S)
    assert webhooks.any_due(NOW)
    assert [each.attempts for each in webhooks.claim_due(NOW, 10)] == [1]


def test_no_overlap_is_asked_for_that_would_look_ahead() -> None:
    assert MAX_OVERLAP_S == LONGEST_OVERLAP_S


def test_the_secret_before_a_rotation_and_days_of_a_key_end_in_time(database: Database, at: SetClock) -> None:
    key, old = create_key(database, "a", GROUPS)
    at(NOW + 366 * DAY_S)
    assert rotate_key(database, key.id, 3600, by="test") is not None
    at(NOW)
    assert authenticate(database, old) is None
    at(NOW + 366 * DAY_S - LONGEST_OVERLAP_S - 1)
    assert authenticate(database, old) is None


def test_days_count_from_a_clock_that_is_not_ahead(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.clock, "now", lambda: Clock().now() + 366 * DAY_S)
    created = KeyAdmin(database, ["g"]).create(CreateKey(name="a", days=30), by="test")
    assert created.expires_at is not None
    assert created.expires_at < Clock().now() + 31 * DAY_S
