"""What operators do with keys, and what they read: the audit, usage, and the log of calls."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from server.accounts.audit import AuditFilter, list_changes
from server.accounts.call_log import CallFilter, CallLog, LoggedCall
from server.accounts.db import Database
from server.accounts.keys import (
    KeyNotFound,
    authenticate,
    create_key,
    find_key,
    revoke_key,
    rotate_key,
    update_key,
)
from server.accounts.ledger import InsufficientBudget, Ledger
from server.accounts.operators import NameTaken, authenticate_operator, create_operator, revoke_operator
from server.accounts.paging import Page, Period, UnknownEntry, month_start
from server.accounts.results import Origin, ResultFilter, ResultStore, SentImages, write_origins
from server.accounts.usage import Usage, UsageFilter, add_chat_usage, months_spent, total, usage
from tests.unit.accounts.helpers import GROUPS, call, capture, result

NEWEST = Page(2, "desc", None)
CALL = LoggedCall(
    id="req_1", job="img_1", key_id="", endpoint="/v1/images/generations", model="alpha", status=200, code=None,
    seconds=1.5, queue_s=0.5, run_s=1.0, price=1000, images=1, prompt_tokens=None, completion_tokens=None,
    replayed=False, created_at=100.0, prompt="a boat", parameters={"seed": 7},
)  # fmt: skip


def test_a_rotated_key_has_two_secrets_until_the_overlap_ends(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, old = create_key(database, "shop", GROUPS)
    rotated = rotate_key(database, key.id, 60, by="anna")
    assert rotated is not None
    renewed, new = rotated
    assert renewed.rotating_until is not None
    assert {found.id for secret in (old, new) if (found := authenticate(database, secret))} == {key.id}
    later = datetime.now(UTC).timestamp() + 61
    monkeypatch.setattr(database.clock, "now", lambda: later)
    assert authenticate(database, old) is None
    found = authenticate(database, new)
    assert found is not None
    assert found.rotating_until is None


def test_keys_are_found_by_id_name_and_unique_prefix(database: Database) -> None:
    first, _ = create_key(database, "web shop", GROUPS)
    second, _ = create_key(database, "web app", GROUPS)
    assert find_key(database, first.id) == find_key(database, first.id[:-2]) == find_key(database, "web s") == first
    assert find_key(database, "web app") == second
    for wrong in ("web", "nobody", ""):
        with pytest.raises(KeyNotFound):
            find_key(database, wrong)
    revoke_key(database, first.id, by="anna")
    assert find_key(database, "web") == second


def test_every_change_of_a_key_is_in_the_audit_without_its_secret(database: Database) -> None:
    key, secret = create_key(database, "shop", GROUPS, by="anna")
    update_key(database, key.id, {"name": "shop 2", "monthly_budget": 5000, "groups": frozenset({"beta"})}, by="bob")
    update_key(database, key.id, {"name": "shop 2"}, by="bob")  # which changes nothing
    rotate_key(database, key.id, 60, by="cy")
    revoke_key(database, key.id, by="dee")
    revoke_key(database, key.id, by="dee")
    entries = list_changes(database, AuditFilter(target=key.id), Page(10, "asc", None))
    assert [(entry.operator, entry.action) for entry in entries] == [
        ("anna", "key.create"), ("bob", "key.change"), ("cy", "key.rotate"), ("dee", "key.revoke"),
    ]  # fmt: skip
    assert entries[1].details == {
        "name": ["shop", "shop 2"], "monthly_budget": [None, 5000], "groups": [["alpha", "beta"], ["beta"]],
    }  # fmt: skip
    assert secret not in str(entries)
    newest = list_changes(database, AuditFilter(), NEWEST)
    assert [entry.action for entry in newest] == ["key.revoke", "key.rotate", "key.change"]
    older = list_changes(database, AuditFilter(), Page(9, "desc", str(newest[1].id)))
    assert [entry.action for entry in older] == ["key.change", "key.create"]
    with pytest.raises(UnknownEntry):
        list_changes(database, AuditFilter(), Page(9, "desc", "no-entry"))


def test_operators_have_keys_of_their_own(database: Database) -> None:
    anna, secret = create_operator(database, "anna", by="cli:root")
    with pytest.raises(NameTaken):
        create_operator(database, "anna", by="cli:root")
    assert authenticate_operator(database, secret) == anna
    assert revoke_operator(database, "anna", by="bob") is not None
    assert revoke_operator(database, anna.id, by="bob") is None
    assert authenticate_operator(database, secret) is None
    create_operator(database, "anna", by="bob")


def test_a_monthly_budget_is_free_again_in_the_next_month(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.clock, "now", datetime(2026, 10, 15, tzinfo=UTC).timestamp)
    key, _ = create_key(database, "team", GROUPS, limits={"monthly_budget": 1500})
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("a")])
    with pytest.raises(InsufficientBudget) as refused:
        ledger.hold(call("c2", key.id))
    assert (refused.value.available_units, refused.value.monthly) == (500, True)
    next_month = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    assert months_spent(database) == {key.id: 1000}
    monkeypatch.setattr(database.clock, "now", lambda: next_month + 1)
    ledger.hold(call("c3", key.id))
    assert months_spent(database) == {}


def test_a_month_begins_on_its_first_day_in_utc() -> None:
    last_minute = datetime(2026, 3, 31, 23, 59, tzinfo=UTC).timestamp()
    assert month_start(last_minute) == datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def test_usage_has_equal_sums_however_it_is_grouped(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (create_key(database, name, GROUPS)[0] for name in ("one", "two"))
    ledger = Ledger(database, "me")
    days = [datetime(2026, 10, 31, 23, 59, 59, 500_000, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)]
    for number, (key, day) in enumerate([(first, days[0]), (first, days[1]), (second, days[1])]):
        monkeypatch.setattr(database.clock, "now", day.timestamp)
        ledger.hold(call(f"c{number}", key.id, 1000 * (number + 1)))
        capture(ledger, f"c{number}", [result(f"p{number}{n}") for n in range(number + 1)])
    monkeypatch.undo()
    add_chat_usage(database, first.id, "chatty", 5, 7)
    everything = UsageFilter()
    whole = Usage(calls=3, images=6, amount=6000, chats=1, prompt_tokens=5, completion_tokens=7)
    for by in ([], ["key"], ["day"], ["month", "model"], ["key", "day", "model"]):
        assert total(usage(database, everything, by)) == whole
    october = Period(datetime(2026, 10, 1, tzinfo=UTC).timestamp(), days[1].timestamp())
    assert usage(database, UsageFilter(period=october), ["key", "month"]) == [
        Usage(first.id, "one", month="2026-10", calls=1, images=1, amount=1000)
    ]
    assert [row.day for row in usage(database, UsageFilter(second.id), ["day"])] == ["2026-11-01"]
    assert usage(database, UsageFilter(model="chatty"), []) == [Usage(chats=1, prompt_tokens=5, completion_tokens=7)]


def test_calls_are_listed_filtered_and_forgotten(database: Database) -> None:
    mine, others = (create_key(database, name, GROUPS)[0] for name in ("mine", "others"))
    log = CallLog(database)
    first = replace(CALL, key_id=mine.id, key_name="mine")
    refused = replace(first, id="req_2", job=None, status=429, code="insufficient_quota", price=0, created_at=101.0)
    failed = replace(first, id="req_3", job="img_3", status=500, code="engine_failed", created_at=102.0)
    foreign = replace(first, id="req_4", key_id=others.id, key_name="others", created_at=103.0)
    for each in (first, refused, failed, foreign):
        log.add(each)
    assert log.page(CallFilter(), NEWEST) == [foreign, failed, refused]
    assert log.page(CallFilter(mine.id), Page(2, "desc", "req_3")) == [refused, first]
    assert log.page(CallFilter(outcome="refused"), NEWEST) == [refused]
    assert log.page(CallFilter(code="engine_failed", period=Period(102.0, 103.0)), NEWEST) == [failed]
    with pytest.raises(UnknownEntry):
        log.page(CallFilter(mine.id), Page(2, "desc", "req_4"))
    assert log.find("img_3", mine.id) == log.find("req_3") == failed
    assert log.find("req_4", mine.id) is None
    assert log.last_used() == {mine.id: 102.0, others.id: 103.0}
    log.delete_prompts()
    assert log.find("req_1") == replace(first, prompt=None, parameters=None)
    assert log.delete_older(60) == 4


def test_results_are_listed_by_words_and_delete_their_prompt_when_deleted(database: Database) -> None:
    key, _ = create_key(database, "artist", GROUPS)
    ledger, store = Ledger(database, "me"), ResultStore(database)
    origin = Origin(2**53 - 1, "a red boat, 100%", {"steps": 4}, ["b.png"])
    ledger.hold(call("c1", key.id))
    sent = SentImages(["b.png"], [None])
    images = [result("a"), replace(result("b"), position=1)]
    capture(ledger, "c1", images, lambda session: write_origins(session, {"a.png": origin}, sent))
    found = {each.name: each.origin for each in store.page(ResultFilter(key.id), Page(5, "asc", None))}
    assert found == {"a.png": origin, "b.png": None}
    for words, names in ((["RED", "boat"], ["a.png"]), (["100%"], ["a.png"]), (["r_d"], []), (["green"], [])):
        assert [each.name for each in store.page(ResultFilter(key.id, words=words), NEWEST)] == names
    assert store.page(ResultFilter(key.id, model="beta"), NEWEST) == []
    assert store.find("a.png", "key_other") is None
    assert not store.delete("a.png", "key_other")
    assert store.delete("a.png", key.id)
    assert not store.delete("a.png", key.id)
    assert store.find("a.png", key.id) is None
    with database.read() as session:
        assert session.scalar(text("SELECT prompt FROM results WHERE name = 'a.png'")) is None
        assert session.scalar(text("SELECT count(*) FROM entries")) == 1


def test_a_nul_in_a_text_is_no_failure(database: Database) -> None:
    """JSON and URLs can have it, PostgreSQL's text can't."""
    key, secret = create_key(database, "a\0b", GROUPS)
    found = authenticate(database, secret)
    assert found is not None
    assert found.name == ("a\0b" if database.is_sqlite else "a\ufffdb")
    assert revoke_key(database, f"{key.id}\0", by="anna") is None
