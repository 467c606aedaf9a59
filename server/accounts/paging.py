"""Pages and periods of lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

RowT = TypeVar("RowT")
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: after the entry with this id."""

    limit: int
    order: Order = "desc"
    after: str | None = None


FIRST_PAGE = Page(100)


@dataclass(frozen=True, slots=True)
class Period:
    """A period from `since` (inclusive) to `until` (exclusive), in Unix seconds. None: since ever, until now."""

    since: float | None = None
    until: float | None = None

    def bounds(self, column: InstrumentedAttribute[float]) -> list[ColumnElement[bool]]:
        """Return the conditions that a row of the period fulfils."""
        bounds = []
        if self.since is not None:
            bounds.append(column >= self.since)
        if self.until is not None:
            bounds.append(column < self.until)
        return bounds


ALWAYS = Period()


class UnknownEntry(Exception):
    """The page begins after an entry that is not in the list."""


def read_page(
    session: Session,
    query: Select[RowT],
    age: Sequence[InstrumentedAttribute[Any]],
    page: Page,
    after: RowT | None,
) -> list[RowT]:
    """Read the rows by `age`, and one more than the page has room for if there are more. `after` is the row that
    `page.after` names. Raises UnknownEntry if that is None."""
    if page.after is not None:
        if after is None:
            raise UnknownEntry(page.after)
        here = tuple(getattr(after, column.key) for column in age)
        query = query.where(tuple_(*age) < here if page.order == "desc" else tuple_(*age) > here)
    ordered = query.order_by(*(column.desc() if page.order == "desc" else column for column in age))
    return list(session.scalars(ordered.limit(page.limit + 1)))


def read_own(
    session: Session, query: Select[RowT], age: Sequence[InstrumentedAttribute[Any]], page: Page, key_id: str | None
) -> list[RowT]:
    """Read a page as `read_page` does, but begin only after a row of this key; `key_id` None is any key. The last of
    `age` must be the primary key."""
    named = select(age[0].class_).where(age[-1] == page.after)
    mine = named if key_id is None else named.filter_by(key_id=key_id)
    return read_page(session, query, age, page, session.scalar(mine) if page.after is not None else None)


def read_page_by_id(session: Session, query: Select[RowT], table: type[RowT], page: Page) -> list[RowT]:
    """Read a page as `read_page` does, by the number that is the table's primary key `id`."""
    number: InstrumentedAttribute[Any] = table.id  # type: ignore[attr-defined]  # which no protocol says of a table
    known = page.after is not None and page.after.isdecimal() and len(page.after) < 19
    return read_page(session, query, [number], page, session.get(table, int(page.after or 0)) if known else None)


def month_start(now_s: float) -> float:
    """Return the beginning of the month of this time, in UTC."""
    today = datetime.fromtimestamp(now_s, UTC)
    return datetime(today.year, today.month, 1, tzinfo=UTC).timestamp()


def month_end(now_s: float) -> float:
    """Return the beginning of the month after this time's, in UTC."""
    return month_start(month_start(now_s) + 32 * 86_400)
