"""Pages and periods of lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: after the entry with this id."""

    limit: int
    order: Literal["asc", "desc"]
    after: str | None


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` (inclusive) to `until` (exclusive), in Unix seconds. None: since ever, until now."""

    since: float | None = None
    until: float | None = None

    def bounds(self, column: InstrumentedAttribute[float]) -> list[ColumnElement[bool]]:
        """What a row of the period fulfils."""
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
    """The rows by `age`, and one more than the page has room for if there are more. `after` is the row that
    `page.after` names. Raises UnknownEntry if that is None."""
    if page.after is not None:
        if after is None:
            raise UnknownEntry(page.after)
        here = tuple(getattr(after, column.key) for column in age)
        query = query.where(tuple_(*age) < here if page.order == "desc" else tuple_(*age) > here)
    ordered = query.order_by(*(column.desc() if page.order == "desc" else column for column in age))
    return list(session.scalars(ordered.limit(page.limit + 1)))


def month_start(now_s: float) -> float:
    """When the month of this time began, in UTC."""
    today = datetime.fromtimestamp(now_s, UTC)
    return datetime(today.year, today.month, 1, tzinfo=UTC).timestamp()
