"""Stored responses: chains in one query, separate for each key, and recovery after a crash."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from server.accounts import conversations
from server.accounts.conversations import Conversation, ConversationStore, TooMany
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.response_items import StoredItem
from server.accounts.responses import ResponseStore, StoredResponse
from tests.unit.accounts.helpers import GROUPS, server

ROUNDS = 50


@pytest.fixture
def key(database: Database) -> str:
    return create_key(database, "one", GROUPS)[0].id


@pytest.fixture
def store(database: Database) -> ResponseStore:
    return ResponseStore(database, "me")


def response(number: int, key_id: str, previous: str | None = None, state: str = "in_progress") -> StoredResponse:
    return StoredResponse(f"resp_{number}", key_id, previous, state, False, {"model": "m"}, 1_760_000_000)


def item(name: str, side: Any = "input", image: str | None = None) -> StoredItem:
    return StoredItem(side, {"id": name, "type": "message"}, image)


def store_round(store: ResponseStore, number: int, key_id: str) -> None:
    stored = response(number, key_id, f"resp_{number - 1}" if number else None)
    store.begin(stored, [item(f"in_{number}")])
    store.add_output(stored, 1, item(f"out_{number}", "output", f"{number}.png"))
    assert store.finish(stored.id, "completed", {})


def test_a_long_chain_is_one_query_and_in_order(database: Database, store: ResponseStore, key: str) -> None:
    for number in range(ROUNDS):
        store_round(store, number, key)
    statements: list[str] = []
    event.listen(database._readers, "before_cursor_execute", lambda *args: statements.append(args[2]))
    loaded = store.find_chain(f"resp_{ROUNDS - 1}", key)
    assert [statement.split()[0] for statement in statements] == [*(["BEGIN"] if database.is_sqlite else []), "WITH"]
    assert loaded is not None
    state, items = loaded
    assert state == "completed"
    assert [one.id for one in items] == [f"{side}_{n}" for n in range(ROUNDS) for side in ("in", "out")]
    assert items[-1].image == f"{ROUNDS - 1}.png"


def test_a_chain_may_branch(store: ResponseStore, key: str) -> None:
    store_round(store, 0, key)
    store_round(store, 1, key)
    store.begin(response(9, key, "resp_0"), [item("other")])
    loaded = store.find_chain("resp_9", key)
    assert loaded is not None
    assert [one.id for one in loaded[1]] == ["in_0", "out_0", "other"]


def test_another_key_finds_nothing(database: Database, store: ResponseStore, key: str) -> None:
    store_round(store, 0, key)
    other = create_key(database, "two", GROUPS)[0].id
    assert store.find_chain("resp_0", other) is None
    assert store.find("resp_0", other) is None
    assert store.find_items(["in_0"], other) == {}
    assert not store.delete("resp_0", other)
    assert store.find("resp_0", key) is not None


def test_a_response_ends_once(store: ResponseStore, key: str) -> None:
    store.begin(response(0, key), [item("in_0")])
    assert store.finish("resp_0", "cancelled", {"error": None})
    assert not store.finish("resp_0", "completed", {})
    loaded = store.find("resp_0", key)
    assert loaded is not None
    assert loaded[0].state == "cancelled"
    assert not loaded[0].running


def test_the_responses_of_a_dead_server_fail_with_an_error(database: Database, store: ResponseStore, key: str) -> None:
    dead = ResponseStore(database, "dead")
    dead.begin(response(0, key), [item("in_0")])
    dead.add_output(response(0, key), 1, item("out_0", "output"))
    server(database, "me")
    store.begin(response(1, key), [item("in_1")])
    assert store.finish_orphans() == 1
    loaded = store.find("resp_0", key)
    assert loaded is not None
    record, items = loaded
    assert record.state == "failed"
    assert record.ended is not None
    assert record.ended["error"]["code"] == "server_error"
    assert [one.id for one in items] == ["in_0", "out_0"]
    alive = store.find("resp_1", key)
    assert alive is not None
    assert alive[0].running


def test_deleting_a_response_deletes_its_items_and_images(store: ResponseStore, key: str) -> None:
    for number in range(2):  # the second was sent an item of the first
        store.begin(response(number, key), [item("in_0", image="a.png")])
    assert store.delete("resp_0", key)
    assert store.referenced_files(["a.png", "b.png"]) == {"a.png"}
    assert store.delete("resp_1", key)
    assert store.referenced_files(["a.png"]) == set()
    assert store.find_items(["in_0"], key) == {}
    assert store.find_chain("resp_0", key) is None


def test_expired_responses_are_deleted_unless_they_run(store: ResponseStore, key: str) -> None:
    store_round(store, 0, key)
    store.begin(response(1, key), [item("in_1")])
    store.delete_expired(3600, 3600)
    assert store.find("resp_0", key) is None
    assert store.find("resp_1", key) is not None


def test_an_idempotency_key_finds_its_response_until_that_fails(store: ResponseStore, key: str) -> None:
    for number, state in enumerate(("completed", "failed")):
        stored = replace(response(number, key), idempotency_key=f"k{number}", fingerprint="f")
        store.begin(stored, [item(f"in_{number}")])
        loaded = store.find_keyed(f"k{number}", key)
        assert loaded is not None
        assert loaded[0].fingerprint == "f"
        store.finish(stored.id, state, {})
    assert store.find_keyed("k0", key) is not None
    assert store.find_keyed("k1", key) is None


def test_a_charged_image_is_delivered_after_its_server_died(database: Database, store: ResponseStore, key: str) -> None:
    dead = ResponseStore(database, "dead")
    stored = replace(response(0, key), idempotency_key="k", fingerprint="f")
    dead.begin(stored, [item("in_0")])
    dead.add_output(stored, 1, item("out_0", "output", "a.png"))
    assert store.finish_orphans() == 1
    loaded = store.find_keyed("k", key)
    assert loaded is not None
    record, items = loaded
    assert record.state == "completed"
    assert record.ended is not None
    assert "error" not in record.ended
    assert items[-1].image == "a.png"


def test_a_response_that_is_not_stored_is_there_for_retries_only(store: ResponseStore, key: str) -> None:
    hidden = replace(response(0, key), idempotency_key="k", fingerprint="f", stored=False)
    store.begin(hidden, [])
    store.add_output(hidden, 0, item("out_0", "output"))
    store.finish("resp_0", "completed", {})
    assert store.find("resp_0", key) is None
    assert store.find_chain("resp_0", key) is None
    assert store.find_items(["out_0"], key) == {}
    assert not store.delete("resp_0", key)
    loaded = store.find_keyed("k", key)
    assert loaded is not None
    assert [one.id for one in loaded[1]] == ["out_0"]
    store.delete_expired(4e9, 3600)
    assert store.find_keyed("k", key) is None


def test_recent_responses_with_one_fingerprint_are_found_newest_first(store: ResponseStore, key: str) -> None:
    for number, delivered in enumerate((True, False, True)):
        stored = replace(response(number, key), fingerprint="f", created_at=1_760_000_000 + number)
        store.begin(stored, [])
        store.finish(stored.id, "completed", {})
        if delivered:
            assert store.mark_delivered(stored.id)
    store.begin(replace(response(3, key), fingerprint="f"), [])  # it runs
    store.begin(replace(response(4, key), fingerprint="f", idempotency_key="k"), [])
    store.finish("resp_4", "completed", {})
    assert [(one.id, one.delivered) for one in store.find_by_fingerprint(key, "f", 60)] == [
        ("resp_2", True),
        ("resp_1", False),
        ("resp_0", True),
    ]
    assert store.find_by_fingerprint(key, "other", 60) == []
    assert [store.mark_delivered("resp_1") for _ in "12"] == [True, False]  # of two retries, one is given it
    assert all(one.delivered for one in store.find_by_fingerprint(key, "f", 60))


def test_a_round_is_added_to_its_conversation_once(database: Database, store: ResponseStore, key: str) -> None:
    rounds = ConversationStore(database)
    for number, name in enumerate(("kept", "deleted")):
        rounds.create(Conversation(name, {}, 0), key, [])
        stored = replace(response(number, key), conversation_id=name)
        store.begin(stored, [item(f"in_{number}")])
        store.add_output(stored, 1, item(f"out_{number}", "output", f"{number}.png"))
    assert rounds.delete("deleted", key)
    for number in (0, 1):
        assert store.finish(f"resp_{number}", "completed", {})
        assert not store.finish(f"resp_{number}", "completed", {})
    added = rounds.items("kept", key)
    assert added is not None
    assert [(one.id, one.side, one.image) for one in added[0]] == [
        ("in_0", "input", None), ("out_0", "output", "0.png"),
    ]  # fmt: skip
    assert added[1] == []
    assert rounds.items("deleted", key) is None


def test_a_paid_image_of_a_dead_server_is_added_too(database: Database, store: ResponseStore, key: str) -> None:
    rounds = ConversationStore(database)
    rounds.create(Conversation("one", {}, 0), key, [])
    stored = replace(response(0, key), conversation_id="one")
    store.begin(stored, [item("in")])
    store.add_output(stored, 1, item("out", "output", "0.png"))
    assert ResponseStore(database, "another").finish_orphans() == 1
    added = rounds.items("one", key)
    assert added is not None
    assert [one.id for one in added[0]] == ["in", "out"]


def test_what_is_put_into_conversations_is_bounded(
    database: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MAX_IMAGES", 2)
    monkeypatch.setattr(conversations, "MAX_ITEM_BYTES", 4000)
    store = ConversationStore(database)
    store.create(Conversation("one", {}, 0), key, [replace(item("first"), image="1.png")])
    store.create(Conversation("two", {}, 0), key, [replace(item("second"), image="2.png")])
    with pytest.raises(TooMany, match="pictures"):
        store.add("one", key, [replace(item("third"), image="3.png")])
    long = StoredItem("input", {"id": "long", "type": "message", "content": "\u00e4" * 300})  # 1,800 bytes of JSON
    assert store.add("one", key, [long])
    assert store.add("one", key, [long])
    with pytest.raises(TooMany, match="text"):
        store.add("one", key, [long])
    with pytest.raises(TooMany, match="text"):
        store.create(Conversation("three", {}, 0), key, [long] * 3)
    assert store.add("two", key, [long])
