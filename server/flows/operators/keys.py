"""API keys for operators: their fields from a request, and their state with their money. All functions block."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from server.accounts import report
from server.accounts.call_log import CallLog
from server.accounts.db import Database
from server.accounts.keys import (
    PRIORITY,
    Key,
    KeyChanges,
    KeyNotFound,
    create_key,
    find_key,
    list_keys,
    revoke_key,
    rotate_key,
    update_key,
)
from server.accounts.report import Balance
from server.accounts.teams import Team, list_teams
from server.accounts.usage import months_spent
from server.errors import BadRequest, Conflict, NotFound
from server.flows.operators.teams import find_team, read_amount
from server.money import format_money, optional_money
from server.schemas.keys import CreateKey, KeyEntry, KeyFields, KeyWithSecret, OwnKey

MONEY_FIELDS = ("budget", "monthly_budget")
PLAIN_FIELDS = ("max_running", "per_minute", "keepalive", "note", "name")
CLEARABLE = ("budget", "monthly_budget", "expires_at", "max_running", "per_minute")


@dataclass(frozen=True, slots=True)
class KeyMoney:
    """A key's money in 1/10000 CNY, and when it was used last, in Unix seconds."""

    balance: Balance
    spent_this_month: int
    last_used_at: float | None
    team: Team | None

    def available(self, key: Key) -> int | None:
        """Return the least that the budgets of the key and its team leave, in 1/10000 CNY; None is no limit."""
        monthly = (
            None if key.monthly_budget is None else key.monthly_budget - self.spent_this_month - self.balance.held_units
        )
        limits = (self.balance.available_units, monthly, self.team.available if self.team else None)
        return min((limit for limit in limits if limit is not None), default=None)


class KeyAdmin:
    """Creates and changes keys. `groups` are those of the catalog: a key can't be given others."""

    def __init__(self, database: Database, groups: Collection[str]) -> None:
        self._database = database
        self._groups = groups

    def list_all(self) -> list[KeyEntry]:
        """List all keys, oldest first."""
        money = read_money(self._database)
        return [key_entry(key, money[key.id]) for key in list_keys(self._database)]

    def show(self, text: str) -> KeyEntry:
        """Return a key by id, name or unique prefix, as operators see it. Raises NotFound."""
        return self._entry(self.find(text))

    def find(self, text: str) -> Key:
        """Find a key by id, name or unique prefix. Raises NotFound."""
        try:
            return find_key(self._database, text)
        except KeyNotFound as error:
            raise NotFound(str(error), param="key", code="key_not_found") from error

    def create(self, body: CreateKey, *, by: str) -> KeyWithSecret:
        """Create a key, and return it with its secret. Raises BadRequest."""
        changes = self._changes(body, {})
        groups = changes.pop("groups", frozenset(self._groups))
        key, secret = create_key(self._database, body.name, groups, limits=changes, by=by)
        return KeyWithSecret.describe(self._entry(key), secret=secret)

    def change(self, text: str, body: KeyFields, sent: Mapping[str, Any], *, by: str) -> KeyEntry:
        """Change a key, and return it. `sent` are the fields as they were sent: null takes a limit away. Raises
        NotFound and BadRequest."""
        changes = self._changes(body, sent)
        try:
            changed = update_key(self._database, self.find(text).id, changes, by=by)
        except ValueError as error:
            raise BadRequest(str(error), param="budget") from error
        if changed is None:
            raise NotFound(f"There is no key '{text[:60]}'.", param="key", code="key_not_found")
        return self._entry(changed)

    def rotate(self, text: str, overlap_s: float, *, by: str) -> KeyWithSecret:
        """Give a key a new secret, and return the key with it; the old one works for `overlap_s` more seconds. Raises
        NotFound, and Conflict for a revoked key."""
        key = self.find(text)
        rotated = rotate_key(self._database, key.id, overlap_s, by=by)
        if rotated is None:
            raise Conflict(f"{key.id} ({key.name}) is revoked: it can't get a new secret.", 1, code="key_revoked")
        renewed, secret = rotated
        return KeyWithSecret.describe(self._entry(renewed), secret=secret)

    def revoke(self, text: str, *, by: str) -> KeyEntry:
        """Revoke a key, and return it. Raises NotFound."""
        revoked = revoke_key(self._database, self.find(text).id, by=by)
        if revoked is None:
            raise NotFound(f"There is no key '{text[:60]}'.", param="key", code="key_not_found")
        return self._entry(revoked)

    def _entry(self, key: Key) -> KeyEntry:
        return key_entry(key, read_money(self._database)[key.id])

    def _changes(self, body: KeyFields, sent: Mapping[str, Any]) -> KeyChanges:
        changes: dict[str, Any] = {name: None for name in CLEARABLE if name in sent and sent[name] is None}
        for name in PLAIN_FIELDS:
            if (value := getattr(body, name, None)) is not None:
                changes[name] = value
        for name in MONEY_FIELDS:
            if (amount := getattr(body, name)) is not None:
                changes[name] = read_amount(name, amount)
        if body.team is not None:
            changes["team_id"] = find_team(self._database, body.team).id
        elif "team" in sent:
            changes["team_id"] = ""
        if body.groups is not None:
            changes["groups"] = self._known(body.groups)
        if body.days is not None and body.expires_at is not None:
            raise BadRequest("Send 'days' or 'expires_at', not both.", param="days")
        if body.expires_at is not None:
            changes["expires_at"] = datetime.fromtimestamp(body.expires_at, UTC)
        if body.days is not None:
            changes["expires_at"] = datetime.fromtimestamp(self._database.clock.earliest(), UTC) + timedelta(
                days=body.days
            )
        typed: KeyChanges = changes  # type: ignore[assignment]  # the names are those of KeyChanges
        return typed

    def _known(self, groups: Collection[str]) -> frozenset[str]:
        if unknown := sorted(set(groups) - {*self._groups, PRIORITY}):
            known = ", ".join([*sorted(self._groups), PRIORITY])
            raise BadRequest(f"Unknown group {', '.join(unknown)}. There are: {known}.", param="groups")
        return frozenset(groups)


def read_money(database: Database) -> Mapping[str, KeyMoney]:
    """Return the money of every key, by id."""
    months, used = months_spent(database), CallLog(database).last_used()
    teams = {team.id: team for team in list_teams(database)}
    return {
        each.key_id: KeyMoney(each, months.get(each.key_id, 0), used.get(each.key_id), teams.get(each.team_id))
        for each in report.balances(database)
    }


def key_entry(key: Key, money: KeyMoney) -> KeyEntry:
    """Return a key as operators see it."""
    expires_at, revoked_at, rotating = key.expires_at, key.revoked_at, key.rotating_until
    return KeyEntry.describe(
        key,
        team=money.team.name if money.team else None,
        groups=sorted(key.groups),
        created_at=key.created_at.timestamp(),
        expires_at=expires_at.timestamp() if expires_at else None,
        revoked_at=revoked_at.timestamp() if revoked_at else None,
        rotating_until=rotating.timestamp() if rotating else None,
        budget=optional_money(key.budget),
        monthly_budget=optional_money(key.monthly_budget),
        spent=format_money(money.balance.spent_units),
        spent_this_month=format_money(money.spent_this_month),
        held=format_money(money.balance.held_units),
        available=optional_money(money.available(key)),
        last_used_at=money.last_used_at,
    )


def own_key(key: Key, money: KeyMoney, max_running: int, running: int) -> OwnKey:
    """Return a key as its owner sees it."""
    return OwnKey.describe(key_entry(key, money), max_running=max_running, running=running)
