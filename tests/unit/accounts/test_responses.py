"""Stored responses: chains in one query, nobody else's, and what a dead server leaves."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.responses import ResponseBook, StoredItem, StoredResponse
from tests.unit.accounts.books import GROUPS

ROUNDS = 50


@pytest.fixture
def key(database: Database) -> str:
    return create_key(database, "one", GROUPS)[0].id


@pytest.fixture
def book(database: Database) -> ResponseBook:
    return ResponseBook(database, "me", 60)


def response(number: int, key_id: str, previous: str | None = None, state: str = "in_progress") -> StoredResponse:
    return StoredResponse(f"resp_{number}", key_id, previous, state, False, {"model": "m"}, 1_760_000_000)


def item(name: str, side: Any = "input", picture: str | None = None) -> StoredItem:
    return StoredItem(side, {"id": name, "type": "message"}, picture)


def keep_round(book: ResponseBook, number: int, key_id: str) -> None:
    kept = response(number, key_id, f"resp_{number - 1}" if number else None)
    book.begin(kept, [item(f"in_{number}")])
    book.add_output(kept, 1, item(f"out_{number}", "output", f"{number}.png"))
    assert book.finish(kept.id, "completed", {}, heard=True)


def test_a_long_chain_is_one_query_and_in_order(database: Database, book: ResponseBook, key: str) -> None:
    for number in range(ROUNDS):
        keep_round(book, number, key)
    statements: list[str] = []
    event.listen(database._readers, "before_cursor_execute", lambda *args: statements.append(args[2]))
    found = book.chain(f"resp_{ROUNDS - 1}", key)
    assert [statement.split()[0] for statement in statements] == ["BEGIN" if database.is_sqlite else "SET", "WITH"]
    assert found is not None
    state, items = found
    assert state == "completed"
    assert [one.id for one in items] == [f"{side}_{n}" for n in range(ROUNDS) for side in ("in", "out")]
    assert items[-1].picture == f"{ROUNDS - 1}.png"


def test_a_chain_may_branch(book: ResponseBook, key: str) -> None:
    keep_round(book, 0, key)
    keep_round(book, 1, key)
    book.begin(response(9, key, "resp_0"), [item("other")])
    found = book.chain("resp_9", key)
    assert found is not None
    assert [one.id for one in found[1]] == ["in_0", "out_0", "other"]


def test_another_key_sees_nothing(database: Database, book: ResponseBook, key: str) -> None:
    keep_round(book, 0, key)
    other = create_key(database, "two", GROUPS)[0].id
    assert book.chain("resp_0", other) is None
    assert book.find("resp_0", other) is None
    assert book.items(["in_0"], other) == {}
    assert not book.delete("resp_0", other)
    assert book.find("resp_0", key) is not None


def test_a_response_ends_once(book: ResponseBook, key: str) -> None:
    book.begin(response(0, key), [item("in_0")])
    assert book.finish("resp_0", "cancelled", {"error": None}, heard=True)
    assert not book.finish("resp_0", "completed", {}, heard=True)
    found = book.find("resp_0", key)
    assert found is not None
    assert found[0].state == "cancelled"
    assert not found[0].running


def test_what_a_dead_server_ran_has_failed_and_says_so(database: Database, book: ResponseBook, key: str) -> None:
    dead = ResponseBook(database, "dead", 0)
    dead.begin(response(0, key), [item("in_0")])
    dead.add_output(response(0, key), 1, item("out_0", "output"))
    book.begin(response(1, key), [item("in_1")])
    assert book.settle_orphans() == 1
    found = book.find("resp_0", key)
    assert found is not None
    record, items = found
    assert record.state == "failed"
    assert record.ended is not None
    assert record.ended["error"]["code"] == "server_error"
    assert [one.id for one in items] == ["in_0", "out_0"]
    alive = book.find("resp_1", key)
    assert alive is not None
    assert alive[0].running


def test_deleting_forgets_items_and_pictures(book: ResponseBook, key: str) -> None:
    for number in range(2):  # the second was sent an item of the first
        book.begin(response(number, key), [item("in_0", picture="a.png")])
    assert book.delete("resp_0", key)
    assert book.picture_names() == {"a.png"}
    assert book.delete("resp_1", key)
    assert book.picture_names() == set()
    assert book.items(["in_0"], key) == {}
    assert book.chain("resp_0", key) is None


def test_what_is_too_old_is_forgotten_unless_it_runs(book: ResponseBook, key: str) -> None:
    keep_round(book, 0, key)
    book.begin(response(1, key), [item("in_1")])
    book.forget_old(3600, 3600)
    assert book.find("resp_0", key) is None
    assert book.find("resp_1", key) is not None


def test_an_idempotency_key_finds_its_response_until_that_fails(book: ResponseBook, key: str) -> None:
    for number, state in enumerate(("completed", "failed")):
        kept = replace(response(number, key), idempotency_key=f"k{number}", fingerprint="f")
        book.begin(kept, [item(f"in_{number}")])
        found = book.find_keyed(f"k{number}", key)
        assert found is not None
        assert found[0].fingerprint == "f"
        book.finish(kept.id, state, {}, heard=True)
    assert book.find_keyed("k0", key) is not None
    assert book.find_keyed("k1", key) is None


def test_a_picture_that_is_paid_for_is_delivered_whatever_became_of_the_server(
    database: Database, book: ResponseBook, key: str
) -> None:
    dead = ResponseBook(database, "dead", 0)
    kept = replace(response(0, key), idempotency_key="k", fingerprint="f")
    dead.begin(kept, [item("in_0")])
    dead.add_output(kept, 1, item("out_0", "output", "a.png"))
    assert book.settle_orphans() == 1
    found = book.find_keyed("k", key)
    assert found is not None
    record, items = found
    assert record.state == "completed"
    assert record.ended is not None
    assert "error" not in record.ended
    assert items[-1].picture == "a.png"


def test_what_is_kept_for_retries_alone_can_not_be_asked_for(book: ResponseBook, key: str) -> None:
    hidden = replace(response(0, key), idempotency_key="k", fingerprint="f", stored=False)
    book.begin(hidden, [])
    book.add_output(hidden, 0, item("out_0", "output"))
    book.finish("resp_0", "completed", {}, heard=True)
    assert book.find("resp_0", key) is None
    assert book.chain("resp_0", key) is None
    assert book.items(["out_0"], key) == {}
    assert not book.delete("resp_0", key)
    found = book.find_keyed("k", key)
    assert found is not None
    assert [one.id for one in found[1]] == ["out_0"]
    book.forget_old(4e9, 3600)
    assert book.find_keyed("k", key) is None


def test_equal_responses_that_ended_lately_are_found_the_newest_first(book: ResponseBook, key: str) -> None:
    for number, heard in enumerate((True, False, True)):
        kept = replace(response(number, key), fingerprint="f", created_at=1_760_000_000 + number)
        book.begin(kept, [])
        book.finish(kept.id, "completed", {}, heard=heard)
    book.begin(replace(response(3, key), fingerprint="f"), [])  # it runs
    book.begin(replace(response(4, key), fingerprint="f", idempotency_key="k"), [])
    book.finish("resp_4", "completed", {}, heard=False)
    assert [(one.id, one.heard) for one in book.find_alike(key, "f", 60)] == [
        ("resp_2", True),
        ("resp_1", False),
        ("resp_0", True),
    ]
    assert book.find_alike(key, "other", 60) == []
    assert book.tell_again("resp_1") is not None
    assert all(one.heard for one in book.find_alike(key, "f", 60))
