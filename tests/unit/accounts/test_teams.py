"""Teams: a monthly budget that several keys share, and sums of what was charged to it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from server.accounts import report
from server.accounts.audit import AuditFilter, list_changes
from server.accounts.db import Database
from server.accounts.keys import create_key, update_key
from server.accounts.ledger import InsufficientBudget, Ledger
from server.accounts.paging import Page
from server.accounts.teams import Team, TeamNameTaken, create_team, list_teams, update_team
from server.accounts.usage import Usage, UsageFilter, add_chat_usage, total, usage
from server.flows.operators.keys import read_money
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result


def members(database: Database, number: int, budget: int | None) -> tuple[str, list[str]]:
    """A team and its keys, by id."""
    team_id = create_team(database, "design", budget, by="test")
    return team_id, [create_key(database, f"k{n}", GROUPS, limits={"team_id": team_id})[0].id for n in range(number)]


def spend(database: Database, names: Sequence[str], key_id: str) -> list[str]:
    """Charge as many of these calls as the budgets cover, and return their names."""
    ledger, charged = Ledger(database, "me"), []
    for name in names:
        try:
            ledger.hold(call(name, key_id))
        except InsufficientBudget:
            break
        capture(ledger, name, [result(name)])
        charged.append(name)
    return charged


def only_team(database: Database) -> Team:
    (team,) = list_teams(database)
    return team


def test_keys_of_a_team_share_its_budget_and_the_refusal_names_it(database: Database) -> None:
    _, (first, second) = members(database, 2, 2500)
    assert spend(database, ["a"], first) == ["a"]
    Ledger(database, "me").hold(call("b", second))
    with pytest.raises(InsufficientBudget) as refused:
        Ledger(database, "me").hold(call("c", first))
    assert (refused.value.team, refused.value.available_units, refused.value.monthly) == ("design", 500, True)
    team = only_team(database)
    assert (team.spent_this_month, team.held, team.available, team.keys) == (1000, 1000, 500, 2)
    assert read_money(database)[first].team == team
    Ledger(database, "me").void("b", "over")
    assert spend(database, ["d", "e"], second) == ["d"]
    assert clean(database)


def test_calls_at_once_never_overspend_a_teams_budget(database: Database) -> None:
    """Holds and captures of eight keys run into each other: at no time is more held and charged than the budget."""
    _, keys = members(database, 8, 10_000)

    def calls_of(number: int) -> int:
        return len(spend(database, [f"{number}-{n}" for n in range(5)], keys[number]))

    with ThreadPoolExecutor(8) as threads:
        charged = list(threads.map(calls_of, range(8)))
    assert sum(charged) == 10
    assert only_team(database).available == 0
    assert clean(database)


def test_charges_stay_with_the_team_of_their_hold(database: Database) -> None:
    team_id, (key_id,) = members(database, 1, None)
    ledger = Ledger(database, "me")
    assert spend(database, ["a"], key_id) == ["a"]
    add_chat_usage(database, key_id, "chatty", 5, 7)
    ledger.hold(call("b", key_id))
    update_key(database, key_id, {"team_id": ""}, by="test")
    capture(ledger, "b", [result("b")], price=400)
    add_chat_usage(database, key_id, "chatty", 1, 1)
    assert spend(database, ["c"], key_id) == ["c"]
    outside, inside = usage(database, UsageFilter(), ["team"])
    assert inside == Usage(
        team_id=team_id,
        team_name="design",
        calls=2,
        images=2,
        amount=1400,
        chats=1,
        prompt_tokens=5,
        completion_tokens=7,
    )
    assert (outside.team_id, outside.team_name, outside.amount, outside.chats) == ("", "", 1000, 1)
    assert total([inside, outside]) == total(usage(database, UsageFilter(), ["key", "day"]))
    assert usage(database, UsageFilter(team_id=team_id), []) == [total([inside])]
    assert {entry.call_id for entry in report.entries(database, team_id=team_id)} == {"a", "b"}
    assert only_team(database).spent_this_month == 1400
    assert clean(database)


@pytest.mark.parametrize("ahead_s", [31 * 86_400.0, 366 * 86_400.0, -31 * 86_400.0])
def test_a_charge_at_another_time_is_of_that_months_budget_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    clock = [datetime(2026, 11, 15, tzinfo=UTC).timestamp()]
    monkeypatch.setattr(database.clock, "now", lambda: clock[0])
    _, (first, second) = members(database, 2, 2000)
    clock[0] += ahead_s
    assert spend(database, ["a", "b", "c"], first) == ["a", "b"]
    clock[0] -= ahead_s
    assert only_team(database).available == 2000
    assert spend(database, ["d", "e", "f"], second) == ["d", "e"]
    assert clean(database)


def test_the_check_compares_and_mends_a_teams_totals(database: Database) -> None:
    team_id, (key_id,) = members(database, 1, 5000)
    spend(database, ["a"], key_id)
    with database.write() as session:
        session.execute(text("UPDATE key_months SET settled = 7"))
    (problem,) = report.check(database)
    assert problem.startswith(f"key {key_id} has a settled total of 7 and charges of 1000 for team {team_id} in 20")
    assert report.repair_totals(database) == 1
    assert only_team(database).spent_this_month == 1000
    with database.write() as session:
        session.execute(text("UPDATE holds SET team_id = ''"))
    assert report.check(database) == ["call a has an entry of another price, key or team than its hold"]


def test_changes_of_a_team_are_in_the_audit(database: Database) -> None:
    team_id = create_team(database, "design", None, by="anna")
    other = create_team(database, "shop", 5, by="anna")
    update_team(database, team_id, {"monthly_budget": 5000}, by="bob")
    update_team(database, team_id, {"monthly_budget": 5000}, by="bob")  # which changes nothing
    for taken in (
        lambda: create_team(database, "shop", None, by="anna"),
        lambda: update_team(database, team_id, {"name": "shop"}, by="bob"),
    ):
        with pytest.raises(TeamNameTaken):
            taken()
    update_team(database, other, {"name": "shop"}, by="bob")
    entries = list_changes(database, AuditFilter(target=team_id), Page(10, "asc", None))
    assert [(entry.operator, entry.action, entry.details) for entry in entries] == [
        ("anna", "team.create", {"name": "design", "monthly_budget": None}),
        ("bob", "team.change", {"monthly_budget": [None, 5000]}),
    ]
