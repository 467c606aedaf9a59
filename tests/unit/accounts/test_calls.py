"""What is remembered of calls, on a real database."""

import time

import pytest
from sqlalchemy import update

from server.accounts.calls import CallBook, CallId, CallRecord, CallTaken, Failure, choose_retried
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import HoldLost, Ledger
from server.accounts.tables import CallRow
from tests.unit.accounts.books import GROUPS, call, clean, result

REFUSAL = Failure("failed", 400, {"message": "no", "type": "t", "param": None, "code": "c"}, kept=True)
BREAKDOWN = Failure("failed", 500, {"message": "oh"}, kept=False)


@pytest.fixture
def key_id(database: Database) -> str:
    return create_key(database, "a", GROUPS)[0].id


def named(key_id: str, call_id: str = "img_1", key: str | None = "k", fingerprint: str = "f") -> CallId:
    return CallId(call_id, key_id, "images.generations", fingerprint, key)


def begin(database: Database, book: CallBook, which: CallId, owner: str = "me", lease_s: float = 60) -> Ledger:
    ledger = Ledger(database, owner, lease_s)
    ledger.hold(call(which.id, which.key_id), book.beginning(which))
    return ledger


def test_a_success_is_recorded_with_its_charge_or_not_at_all(database: Database, key_id: str) -> None:
    book = CallBook(database, "me", 60)
    ledger = begin(database, book, named(key_id))
    found = book.find_keyed(key_id, "images.generations", "k")
    assert found is not None
    assert found.state == "running"
    ledger.capture("img_1", [result("a")], book.success("img_1", {"answer": 1}, heard=True))
    found = book.find("img_1", key_id)
    assert found is not None
    assert (found.state, found.answer, found.kept, found.heard) == ("succeeded", {"answer": 1}, True, True)
    assert book.find("img_1", "key_of_another") is None

    begin(database, book, named(key_id, "img_2", "k2"))
    Ledger(database, "me").void("img_2", "late")
    with pytest.raises(HoldLost):
        ledger.capture("img_2", [result("b")], book.success("img_2", {}, heard=True))
    lost = book.find("img_2", key_id)
    assert lost is not None
    assert lost.state == "running"
    assert clean(database)


def test_a_refusal_is_kept_and_a_breakdown_makes_room(database: Database, key_id: str) -> None:
    book = CallBook(database, "me", 60)
    book.fail(named(key_id), REFUSAL, heard=True)  # before anything was recorded
    kept = book.find_keyed(key_id, "images.generations", "k")
    assert kept is not None
    assert (kept.status, kept.answer) == (400, REFUSAL.error)

    begin(database, book, named(key_id, "img_2", "k2"))
    book.fail(named(key_id, "img_2", "k2"), BREAKDOWN, heard=True)
    assert book.find_keyed(key_id, "images.generations", "k2") is None
    broken = book.find("img_2", key_id)
    assert broken is not None
    assert (broken.state, broken.status) == ("failed", 500)
    begin(database, book, named(key_id, "img_3", "k2"))


def test_what_failed_before_it_began_is_recorded_for_an_idempotency_key_alone(database: Database, key_id: str) -> None:
    book = CallBook(database, "me", 60)
    book.fail(named(key_id, key=None), REFUSAL, heard=True)
    book.fail(named(key_id, "img_2"), BREAKDOWN, heard=True)
    assert book.find("img_1", key_id) is book.find("img_2", key_id) is None


def test_a_call_that_has_ended_can_not_fail_any_more(database: Database, key_id: str) -> None:
    book = CallBook(database, "me", 60)
    ledger = begin(database, book, named(key_id))
    ledger.capture("img_1", [result("a")], book.success("img_1", {}, heard=False))
    book.fail(named(key_id), BREAKDOWN, heard=True)
    found = book.find("img_1", key_id)
    assert found is not None
    assert found.state == "succeeded"


def test_one_key_is_one_call_even_for_servers_that_share_a_database(database: Database, key_id: str) -> None:
    begin(database, CallBook(database, "me", 60), named(key_id))
    with pytest.raises(CallTaken):
        begin(database, CallBook(database, "you", 60), named(key_id, "img_2"), owner="you")
    other_endpoint = CallId("img_3", key_id, "images.edits", "f", "k")
    begin(database, CallBook(database, "you", 60), other_endpoint, owner="you")
    for number in range(2):  # calls without a key never collide
        begin(database, CallBook(database, "me", 60), named(key_id, f"img_1{number}", None))
    assert clean(database)


def test_an_old_key_is_free_again_and_old_records_go(database: Database, key_id: str) -> None:
    book = CallBook(database, "me", 60)
    book.fail(named(key_id), REFUSAL, heard=True)
    with database.write() as session:
        session.execute(update(CallRow).values(created_at=time.time() - 61))
    assert book.find_keyed(key_id, "images.generations", "k") is None
    begin(database, book, named(key_id, "img_2"))
    book.forget_old()
    assert book.find("img_1", key_id) is None
    assert book.find("img_2", key_id) is not None


def test_what_a_dead_server_ran_has_failed_uncharged(database: Database, key_id: str) -> None:
    begin(database, CallBook(database, "dead", 60), named(key_id), owner="dead", lease_s=0)
    book = CallBook(database, "next", 60)
    assert book.fail_orphans() == 0  # its hold says that it may live
    assert Ledger(database, "next").void_orphans() == 1
    assert book.fail_orphans() == 1
    found = book.find("img_1", key_id)
    assert found is not None
    assert found.state == "failed"
    assert found.answer is not None
    assert "nothing was charged" in found.answer["message"]
    assert book.find_keyed(key_id, "images.generations", "k") is None


def test_an_answer_that_is_owed_once_is_given_once(database: Database, key_id: str) -> None:
    book = CallBook(database, "me", 60)
    book.fail(named(key_id), Failure("failed", 500, {"message": "oh"}, kept=True), heard=True)
    assert book.find_keyed(key_id, "images.generations", "k") is not None
    book.told("img_1", keep=False)
    assert book.find_keyed(key_id, "images.generations", "k") is None


def record(name: str, *, kept: bool, heard: bool) -> CallRecord:
    return CallRecord(named("key", name), "succeeded" if kept else "failed", 200, {}, kept, heard, 0)


@pytest.mark.parametrize(
    ("alike", "expected", "chosen"),
    [
        ([], False, None),
        ([("a", True, True)], False, "a"),
        ([("a", True, True)], True, None),  # another call was told to come again, and this may be it
        ([("a", False, True)], False, None),
        ([("a", False, True), ("b", True, True)], False, None),  # the newest failed: it is drawn anew
        ([("a", True, True), ("b", True, False)], True, "b"),  # the unheard one lost its connection
        ([("a", True, False), ("b", True, False)], False, "a"),
        ([("a", False, True), ("b", True, False)], False, "b"),
    ],
)
def test_a_retry_is_about_the_call_that_nobody_heard(
    alike: list[tuple[str, bool, bool]], expected: bool, chosen: str | None
) -> None:
    records = [record(name, kept=kept, heard=heard) for name, kept, heard in alike]
    found = choose_retried(records, another_expected=expected)
    assert (found.call.id if found else None) == chosen


def test_a_call_whose_end_could_not_be_written_down_is_settled_when_its_hold_has_lapsed(
    database: Database, key_id: str
) -> None:
    book = CallBook(database, "me", 60)
    begin(database, book, named(key_id), owner="me")
    Ledger(database, "me").void("img_1", "test")
    assert book.fail_orphans({"img_1"}) == 0  # it runs
    assert book.fail_orphans() == 1
    assert book.find_keyed(key_id, "images.generations", "k") is None
