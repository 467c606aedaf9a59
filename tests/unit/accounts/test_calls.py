"""Stored calls, on a real database."""

import time

import pytest
from sqlalchemy import update

from server.accounts.calls import CallId, CallStore, Failure, IdempotencyKeyInUse
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import HoldLost, Ledger
from server.accounts.tables import CallRow
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result, server

REFUSAL = Failure("failed", 400, {"message": "no", "type": "t", "param": None, "code": "c"}, replayable=True)
ENGINE_FAILURE = Failure("failed", 500, {"message": "oh"}, replayable=False)


@pytest.fixture
def key_id(database: Database) -> str:
    return create_key(database, "a", GROUPS)[0].id


def make_id(key_id: str, call_id: str = "img_1", key: str | None = "k", fingerprint: str = "f") -> CallId:
    return CallId(call_id, key_id, "images.generations", fingerprint, key)


def begin(
    database: Database, store: CallStore, call_to_begin: CallId, owner: str = "me", lease_s: float = 60
) -> Ledger:
    ledger = Ledger(database, owner, lease_s)
    ledger.hold(call(call_to_begin.id, call_to_begin.key_id), [store.begin_write(call_to_begin)])
    return ledger


def test_a_success_is_recorded_together_with_its_charge(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    ledger = begin(database, store, make_id(key_id))
    loaded = store.find_keyed(key_id, "images.generations", "k")
    assert loaded is not None
    assert loaded.state == "running"
    capture(ledger, "img_1", [result("a")], store.success_write("img_1", {"answer": 1}, delivered=True))
    loaded = store.find("img_1", key_id)
    assert loaded is not None
    assert (loaded.state, loaded.answer, loaded.replayable, loaded.delivered) == (
        "succeeded",
        {"answer": 1},
        True,
        True,
    )
    assert store.find("img_1", "key_of_another") is None

    begin(database, store, make_id(key_id, "img_2", "k2"))
    Ledger(database, "me").void("img_2", "late")
    with pytest.raises(HoldLost):
        capture(ledger, "img_2", [result("b")], store.success_write("img_2", {}, delivered=True))
    lost = store.find("img_2", key_id)
    assert lost is not None
    assert lost.state == "running"
    assert clean(database)


def test_a_refusal_is_replayed_and_an_engine_failure_frees_the_key(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    store.fail(make_id(key_id), REFUSAL, delivered=True)  # before anything was recorded
    stored = store.find_keyed(key_id, "images.generations", "k")
    assert stored is not None
    assert (stored.status, stored.answer) == (400, REFUSAL.error)

    begin(database, store, make_id(key_id, "img_2", "k2"))
    store.fail(make_id(key_id, "img_2", "k2"), ENGINE_FAILURE, delivered=True)
    assert store.find_keyed(key_id, "images.generations", "k2") is None
    broken = store.find("img_2", key_id)
    assert broken is not None
    assert (broken.state, broken.status) == ("failed", 500)
    begin(database, store, make_id(key_id, "img_3", "k2"))


def test_a_failure_before_the_start_is_recorded_only_for_an_idempotency_key(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    store.fail(make_id(key_id, key=None), REFUSAL, delivered=True)
    store.fail(make_id(key_id, "img_2"), ENGINE_FAILURE, delivered=True)
    assert store.find("img_1", key_id) is store.find("img_2", key_id) is None


def test_a_call_that_has_ended_can_not_fail_any_more(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    ledger = begin(database, store, make_id(key_id))
    capture(ledger, "img_1", [result("a")], store.success_write("img_1", {}, delivered=False))
    store.fail(make_id(key_id), ENGINE_FAILURE, delivered=True)
    loaded = store.find("img_1", key_id)
    assert loaded is not None
    assert loaded.state == "succeeded"


def test_servers_that_share_a_database_run_one_call_for_one_idempotency_key(database: Database, key_id: str) -> None:
    begin(database, CallStore(database, "me", 60), make_id(key_id))
    with pytest.raises(IdempotencyKeyInUse):
        begin(database, CallStore(database, "you", 60), make_id(key_id, "img_2"), owner="you")
    other_endpoint = CallId("img_3", key_id, "images.edits", "f", "k")
    begin(database, CallStore(database, "you", 60), other_endpoint, owner="you")
    for number in range(2):  # calls without a key never collide
        begin(database, CallStore(database, "me", 60), make_id(key_id, f"img_1{number}", None))
    assert clean(database)


def test_an_expired_idempotency_key_is_free_and_expired_records_are_deleted(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    store.fail(make_id(key_id), REFUSAL, delivered=True)
    with database.write() as session:
        session.execute(update(CallRow).values(created_at=time.time() - 61))
    assert store.find_keyed(key_id, "images.generations", "k") is None
    begin(database, store, make_id(key_id, "img_2"))
    store.delete_expired()
    assert store.find("img_1", key_id) is None
    assert store.find("img_2", key_id) is not None


def test_the_calls_of_a_dead_server_fail_and_are_not_charged(database: Database, key_id: str) -> None:
    begin(database, CallStore(database, "dead", 60), make_id(key_id), owner="dead", lease_s=0)
    store = CallStore(database, "next", 60)
    server(database, "next")
    assert store.fail_orphans() == 0  # its hold is held, so its server may be alive
    assert Ledger(database, "next").void_orphans() == 1
    assert store.fail_orphans() == 1
    loaded = store.find("img_1", key_id)
    assert loaded is not None
    assert loaded.state == "failed"
    assert loaded.answer is not None
    assert "nothing was charged" in loaded.answer["message"]
    assert store.find_keyed(key_id, "images.generations", "k") is None


def test_an_answer_that_is_replayable_once_is_replayed_once(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    store.fail(make_id(key_id), Failure("failed", 500, {"message": "oh"}, replayable=True), delivered=True)
    assert store.find_keyed(key_id, "images.generations", "k") is not None
    store.free("img_1")
    assert store.find_keyed(key_id, "images.generations", "k") is None


def test_a_call_whose_end_could_not_be_recorded_fails_once_its_hold_is_void(database: Database, key_id: str) -> None:
    store = CallStore(database, "me", 60)
    server(database, "me")
    begin(database, store, make_id(key_id), owner="me")
    Ledger(database, "me").void("img_1", "test")
    assert store.fail_orphans({"img_1"}) == 0  # it runs
    assert store.fail_orphans() == 1
    assert store.find_keyed(key_id, "images.generations", "k") is None
