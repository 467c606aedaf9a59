"""Usage by team, key, time and model: calls, images and money from the ledger's entries, chats and tokens from their
daily counts.

The sums of every grouping are equal, since they are sums of the same entries. Days and months are in UTC.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from server.accounts.db import Database
from server.accounts.paging import ALWAYS, Period, month_start
from server.accounts.result_tables import ResultRow
from server.accounts.tables import ChatUsageRow, EntryRow, KeyMonthRow, KeyRow, TeamRow

Grouping = Literal["team", "key", "day", "month", "model"]
GROUPINGS: tuple[Grouping, ...] = ("team", "key", "day", "month", "model")
SUMS = ("calls", "images", "amount", "chats", "prompt_tokens", "completion_tokens")
LAST_MOMENT_S = 1e-3  # before the end of a period, which is exclusive


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums of one group. A field that it is not grouped by is None; a `team_id` of no team is "". `amount` in
    1/10000 CNY."""

    key_id: str | None = None
    key_name: str | None = None
    day: str | None = None  # YYYY-MM-DD
    month: str | None = None  # YYYY-MM
    model: str | None = None
    team_id: str | None = None
    team_name: str | None = None
    calls: int = 0
    images: int = 0
    amount: int = 0
    chats: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Return this group with the sums of both."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in SUMS})


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """A filter of usage. None is any."""

    key_id: str | None = None
    model: str | None = None
    period: Period = ALWAYS
    team_id: str | None = None

    def equal(self, row: type[EntryRow] | type[ChatUsageRow]) -> list[ColumnElement[bool]]:
        """Return the SQL conditions for key, team and model, without those for the period."""
        values = {row.key_id: self.key_id, row.team_id: self.team_id, row.model: self.model}
        return [column == value for column, value in values.items() if value is not None]


def usage(database: Database, wanted: UsageFilter, by: Collection[Grouping]) -> list[Usage]:
    """Return the sums of charges and tokens for each group that has any. Groups are by the dimensions in `by`: team,
    key, time, model."""
    groups: dict[Usage, Usage] = {}
    with database.read() as session:
        names = {row.id: row.name for row in session.execute(select(KeyRow.id, KeyRow.name))}
        teams = {"": "", **{row.id: row.name for row in session.execute(select(TeamRow.id, TeamRow.name))}}
        counted = [*session.execute(_entries_query(database, wanted)), *session.execute(_chats_query(wanted))]
    for team_id, key_id, day, model, *sums in counted:
        group = Usage(
            team_id=team_id if "team" in by else None,
            team_name=teams.get(team_id) if "team" in by else None,
            key_id=key_id if "key" in by else None,
            key_name=names.get(key_id) if "key" in by else None,
            day=day if "day" in by else None,
            month=day[:7] if "month" in by else None,
            model=model if "model" in by else None,
        )
        numbers: dict[str, Any] = {name: int(number or 0) for name, number in zip(SUMS, sums, strict=True)}
        groups[group] = groups.get(group, group).plus(Usage(**numbers))
    return [groups[group] for group in sorted(groups, key=_sort_key)]


def total(rows: Iterable[Usage]) -> Usage:
    """Return the sum of all rows."""
    whole = Usage()
    for row in rows:
        whole = whole.plus(row)
    return whole


def months_spent(database: Database) -> dict[str, int]:
    """Return the charges of each key in this month, in 1/10000 CNY, by id: they are compared with its monthly
    budget."""
    this_month = KeyMonthRow.month == month_start(database.clock.now())
    query = select(KeyMonthRow.key_id, func.sum(KeyMonthRow.settled)).where(this_month).group_by(KeyMonthRow.key_id)
    with database.read() as session:
        return {key_id: int(settled) for key_id, settled in session.execute(query)}


def _entries_query(database: Database, wanted: UsageFilter):  # type: ignore[no-untyped-def]  # noqa: ANN202  # of nine
    drawn = select(ResultRow.call_id, func.count().label("images")).group_by(ResultRow.call_id).subquery()
    day, images = _day(database, EntryRow.created_at), func.sum(drawn.c.images)
    groups, no_chats = (EntryRow.team_id, EntryRow.key_id, day, EntryRow.model), (func.abs(0),) * 3
    return (
        select(*groups, func.count(), images, func.sum(EntryRow.amount), *no_chats)
        .outerjoin(drawn, drawn.c.call_id == EntryRow.call_id)
        .where(*wanted.period.bounds(EntryRow.created_at), *wanted.equal(EntryRow))
        .group_by(*groups)
    )


def _chats_query(wanted: UsageFilter):  # type: ignore[no-untyped-def]  # noqa: ANN202  # of ten columns
    row, zero = ChatUsageRow, func.abs(0)
    tokens = (row.prompt_tokens, row.completion_tokens)
    query = select(row.team_id, row.key_id, row.day, row.model, zero, zero, zero, row.chats, *tokens)
    if wanted.period.since is not None:
        query = query.where(row.day >= _date(wanted.period.since).isoformat())
    if wanted.period.until is not None:
        query = query.where(row.day <= _date(wanted.period.until - LAST_MOMENT_S).isoformat())
    return query.where(*wanted.equal(row))


def _day(database: Database, column: InstrumentedAttribute[float]) -> ColumnElement[str]:
    if database.is_sqlite:
        return func.strftime("%Y-%m-%d", column, "unixepoch")
    return func.to_char(func.timezone("UTC", func.to_timestamp(column)), "YYYY-MM-DD")


def _date(seconds: float) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()


def _sort_key(group: Usage) -> tuple[str, ...]:
    names = (group.team_name, group.team_id, group.key_name, group.key_id, group.day, group.month, group.model)
    return tuple(text or "" for text in names)


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """The totals of one key's chats with one model."""

    key_id: str
    model: str
    chats: int
    prompt_tokens: int
    completion_tokens: int


def add_chat_usage(database: Database, key_id: str, model: str, prompt_tokens: int, completion_tokens: int) -> None:
    """Count one chat, under today in UTC and the key's team."""
    insert = sqlite.insert if database.is_sqlite else postgresql.insert
    row = insert(ChatUsageRow).values(
        key_id=key_id,
        team_id=select(KeyRow.team_id).where(KeyRow.id == key_id).scalar_subquery(),
        model=model,
        day=datetime.fromtimestamp(database.clock.now(), UTC).date().isoformat(),
        chats=1,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )
    totals = ("chats", "prompt_tokens", "completion_tokens")
    upsert = row.on_conflict_do_update(
        index_elements=["key_id", "model", "day", "team_id"],
        set_={name: getattr(ChatUsageRow, name) + getattr(row.excluded, name) for name in totals},
    )
    with database.write() as session:
        session.execute(upsert)


def list_chat_usage(database: Database, key_id: str | None = None) -> list[ChatUsage]:
    """Return the totals over all days, by key and model."""
    row = ChatUsageRow
    query = (
        select(row.key_id, row.model, func.sum(row.chats), func.sum(row.prompt_tokens), func.sum(row.completion_tokens))
        .group_by(row.key_id, row.model)
        .order_by(row.key_id, row.model)
    )
    if key_id is not None:
        query = query.where(row.key_id == key_id)
    with database.read() as session:
        rows = session.execute(query).all()
    return [ChatUsage(key, model, *map(int, totals)) for key, model, *totals in rows]
