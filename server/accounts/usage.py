"""Usage by key, time and model: calls, images and money from the ledger's entries, chats and tokens from their daily
counts.

The sums of every grouping are equal, since they are sums of the same entries. Days and months are in UTC.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute

from server.accounts.db import Database
from server.accounts.paging import ALWAYS, Period, month_start
from server.accounts.result_tables import ResultRow
from server.accounts.tables import ChatUsageRow, EntryRow, KeyMonthRow, KeyRow

Grouping = Literal["key", "day", "month", "model"]
GROUPINGS: tuple[Grouping, ...] = ("key", "day", "month", "model")
LAST_MOMENT_S = 1e-3  # before the end of a period, which is exclusive


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums of one group. A field that it is not grouped by is None. `amount` in 1/10000 CNY."""

    key_id: str | None = None
    key_name: str | None = None
    day: str | None = None  # YYYY-MM-DD
    month: str | None = None  # YYYY-MM
    model: str | None = None
    calls: int = 0
    images: int = 0
    amount: int = 0
    chats: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Add both groups' sums, in the group of this one."""
        names = ("calls", "images", "amount", "chats", "prompt_tokens", "completion_tokens")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """A filter of usage. None is any."""

    key_id: str | None = None
    model: str | None = None
    period: Period = ALWAYS


def usage(database: Database, wanted: UsageFilter, by: Collection[Grouping]) -> list[Usage]:
    """Return the sums of each group that has any, by key, time and model."""
    groups: dict[Usage, Usage] = {}
    with database.read() as session:
        names = {row.id: row.name for row in session.execute(select(KeyRow.id, KeyRow.name))}
        counted = [*session.execute(_entries_query(database, wanted)), *session.execute(_chats_query(wanted))]
    for key_id, day, model, *sums in counted:
        group = Usage(
            key_id=key_id if "key" in by else None,
            key_name=names.get(key_id) if "key" in by else None,
            day=day if "day" in by else None,
            month=day[:7] if "month" in by else None,
            model=model if "model" in by else None,
        )
        numbers = Usage(None, None, None, None, None, *(int(number or 0) for number in sums))
        groups[group] = groups.get(group, group).plus(numbers)
    return [groups[group] for group in sorted(groups, key=_order)]


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
    with database.read() as session:
        return dict(session.execute(select(KeyMonthRow.key_id, KeyMonthRow.settled).where(this_month)).all())


def _entries_query(database: Database, wanted: UsageFilter):  # type: ignore[no-untyped-def]  # noqa: ANN202  # of eight
    drawn = select(ResultRow.call_id, func.count().label("images")).group_by(ResultRow.call_id).subquery()
    day, images = _day(database, EntryRow.created_at), func.sum(drawn.c.images)
    query = (
        select(EntryRow.key_id, day, EntryRow.model, func.count(), images, func.sum(EntryRow.amount))
        .outerjoin(drawn, drawn.c.call_id == EntryRow.call_id)
        .where(*wanted.period.bounds(EntryRow.created_at))
        .group_by(EntryRow.key_id, day, EntryRow.model)
    )
    if wanted.key_id is not None:
        query = query.where(EntryRow.key_id == wanted.key_id)
    return query if wanted.model is None else query.where(EntryRow.model == wanted.model)


def _chats_query(wanted: UsageFilter):  # type: ignore[no-untyped-def]  # noqa: ANN202  # of nine columns
    row, zero = ChatUsageRow, func.abs(0)
    query = select(
        row.key_id, row.day, row.model, zero, zero, zero, row.chats, row.prompt_tokens, row.completion_tokens
    )
    if wanted.period.since is not None:
        query = query.where(row.day >= _date(wanted.period.since).isoformat())
    if wanted.period.until is not None:
        query = query.where(row.day <= _date(wanted.period.until - LAST_MOMENT_S).isoformat())
    if wanted.key_id is not None:
        query = query.where(row.key_id == wanted.key_id)
    return query if wanted.model is None else query.where(row.model == wanted.model)


def _day(database: Database, column: InstrumentedAttribute[float]) -> ColumnElement[str]:
    if database.is_sqlite:
        return func.strftime("%Y-%m-%d", column, "unixepoch")
    return func.to_char(func.timezone("UTC", func.to_timestamp(column)), "YYYY-MM-DD")


def _date(seconds: float) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()


def _order(group: Usage) -> tuple[str, ...]:
    return tuple(text or "" for text in (group.key_name, group.key_id, group.day, group.month, group.model))
