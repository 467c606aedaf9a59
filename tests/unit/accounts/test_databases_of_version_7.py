"""A database of schema version 0007 is read in full: its columns are written here by their names on disk."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from server.accounts import report
from server.accounts.calls import CallId, CallRecord, CallStore
from server.accounts.db import Database
from server.accounts.keys import list_keys
from server.accounts.refusals import Refusal, list_refusals
from server.accounts.response_items import StoredItem
from server.accounts.responses import ResponseStore, StoredResponse
from server.accounts.results import ResultStore, StoredResult
from server.accounts.schema import MIGRATIONS
from server.accounts.usage import ChatUsage, list_chat_usage

NOW = int(time.time())
DAY_S = 86_400
CALL = {
    "key_id": "key_1", "endpoint": "images.generations", "fingerprint": "f", "idempotency_key": None, "owner": "old",
    "status": 200, "answer": '{"data": []}', "created_at": NOW, "ended_at": NOW,
}  # fmt: skip
RESPONSE = {
    "key_id": "key_1", "previous_id": None, "state": "completed", "owner": "old", "lease_until": NOW,
    "background": True, "echo": '{"model": "m"}', "ended": '{"completed_at": 2}', "events": '[{"type": "e"}]',
    "idempotency_key": None, "fingerprint": "f", "created_at": NOW, "stored": True, "ended_at": NOW,
}  # fmt: skip
ITEM = {"key_id": "key_1", "body": '{"id": "item"}'}
ROWS: list[tuple[str, dict[str, object]]] = [
    ("keys", {
        "id": "key_1", "name": "old", "secret_hash": "h", "tail": "abcd", "groups": '["alpha"]', "budget": 5000,
        "created_at": 1.0, "expires_at": 4e9, "revoked_at": None, "max_running": 3, "keepalive": True, "per_minute": 7,
    }),
    ("holds", {
        "call_id": "c1", "key_id": "key_1", "endpoint": "images.generations", "model": "m", "price": 1000,
        "owner": "old", "lease_until": 1.0, "state": "captured", "reason": None, "created_at": 1.0, "settled_at": 2.0,
    }),
    ("entries", {"call_id": "c1", "key_id": "key_1", "model": "m", "amount": 1000, "created_at": 2.0}),
    ("results", {
        "name": "a.png", "call_id": "c1", "key_id": "key_1", "position": 0, "media_type": "image/png", "width_px": 8,
        "height_px": 9, "size_bytes": 100, "sha256": "0" * 64, "created_at": 2.0, "deleted_at": None,
    }),
    ("calls", {**CALL, "id": "c1", "state": "succeeded", "kept": True, "heard": False}),
    ("calls", {**CALL, "id": "c2", "state": "failed", "kept": False, "heard": True, "idempotency_key": "k"}),
    ("responses", {**RESPONSE, "id": "r1", "heard": True}),
    ("responses", {**RESPONSE, "id": "r2", "heard": False, "previous_id": "r1"}),
    ("response_items", {**ITEM, "response_id": "r1", "item_id": "in", "side": "input", "position": 0, "picture": None}),
    ("response_items", {
        **ITEM, "response_id": "r1", "item_id": "out", "side": "output", "position": 1, "picture": "a.png",
    }),
    ("response_files", {"name": "b.png", "response_id": "r1"}),
    ("chat_usage", {
        "key_id": "key_1", "model": "m", "day": "2026-01-01", "chats": 1, "prompt_tokens": 2, "completion_tokens": 3,
    }),
    ("refusals", {
        "call_id": "c3", "key_id": "key_1", "endpoint": "chat.completions", "model": "m", "stage": "input",
        "policy": "p", "category": "c", "evidence": "e", "created_at": 1.0,
    }),
]  # fmt: skip


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    """Filled at version 0007, then migrated to the current version."""
    database = Database(empty_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "0007")
    with database.write() as session:
        for table, row in ROWS:
            names, values = ", ".join(f'"{name}"' for name in row), ", ".join(f":{name}" for name in row)
            session.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)
    database.migrate()
    yield database
    database.dispose()


def test_each_months_charges_are_added_up(database: Database) -> None:
    with database.read() as session:
        assert session.execute(text("SELECT key_id, month, settled FROM key_months")).all() == [("key_1", 0.0, 1000)]


def test_calls_are_read(database: Database) -> None:
    store = CallStore(database, "new", DAY_S)
    endpoint = "images.generations"
    first, second = (CallId(name, "key_1", endpoint, "f", key) for name, key in (("c1", None), ("c2", "k")))
    succeeded = CallRecord(
        first,
        "succeeded",
        200,
        {"data": []},
        replayable=True,
        delivered=False,
        created_at=NOW,
        owner="old",
        ended_at=NOW,
    )
    failed = CallRecord(
        second, "failed", 200, {"data": []}, replayable=False, delivered=True, created_at=NOW, owner="old", ended_at=NOW
    )
    assert store.find("c1", "key_1") == replace(succeeded, model="m")
    assert store.find_keyed("key_1", endpoint, "k") == failed
    assert {record.call.id for record in store.find_by_fingerprint("key_1", endpoint, "f", DAY_S)} == {"c1", "c2"}


def test_responses_are_read(database: Database) -> None:
    store = ResponseStore(database, "new")
    expected = StoredResponse(
        "r1", "key_1", None, "completed", True, {"model": "m"}, NOW, ended={"completed_at": 2}, events=[{"type": "e"}],
        fingerprint="f", stored=True, delivered=True, owner="old",
    )  # fmt: skip
    items = [StoredItem("input", {"id": "item"}), StoredItem("output", {"id": "item"}, "a.png")]
    assert store.find("r1", "key_1") == (expected, items)
    assert store.find_chain("r2", "key_1") == ("completed", items)
    assert store.find_items(["out"], "key_1") == {"out": items[1]}
    assert {one.id: one.delivered for one in store.find_by_fingerprint("key_1", "f", DAY_S)} == {
        "r1": True,
        "r2": False,
    }
    assert store.referenced_files(["a.png", "b.png"]) == {"b.png"}


def test_keys_and_money_are_read(database: Database) -> None:
    (balance,) = report.balances(database)
    assert (balance.budget_units, balance.spent_units, balance.held_units) == (5000, 1000, 0)
    assert ResultStore(database).find_file("a.png") == StoredResult("a.png", "image/png", 8, 9, 100, "0" * 64, 0)
    assert report.check(database) == []
    (key,) = list_keys(database)
    assert (key.name, key.groups, key.max_running, key.per_minute, key.keepalive) == ("old", {"alpha"}, 3, 7, True)


def test_chat_usage_and_refusals_are_read(database: Database) -> None:
    assert list_chat_usage(database) == [ChatUsage("key_1", "m", 1, 2, 3)]
    then = datetime.fromtimestamp(1, UTC)
    assert list_refusals(database) == [Refusal("c3", "key_1", "chat.completions", "m", "input", "p", "c", "e", then)]


def test_delivery_is_written_to_the_columns_on_disk(database: Database) -> None:
    calls = CallStore(database, "new", DAY_S)
    assert calls.mark_delivered("c1")
    calls.free("c1")
    assert ResponseStore(database, "new").mark_delivered("r2")
    with database.read() as session:
        assert session.execute(text("SELECT kept, heard FROM calls WHERE id = 'c1'")).one() == (False, True)
        assert session.scalar(text("SELECT heard FROM responses WHERE id = 'r2'"))
