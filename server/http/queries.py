"""The parameters of lists and reports in their query: a page, a period, a grouping, a format. Each refuses a value
itself, with the error body of all routes."""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Literal, TypeVar

from fastapi import Depends, Query
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from server.accounts.paging import Order, Page, Period
from server.accounts.usage import GROUPINGS, Grouping
from server.errors import BadRequest
from server.flows.operators.periods import read_period
from server.schemas.validation import one_of

MAX_PAGE = 100
ORDERS: Sequence[Order] = ("asc", "desc")
Text = TypeVar("Text", bound=str)


def read_limit(limit: str | int) -> int:
    """Return the number of entries of a page. Raises BadRequest."""
    text = str(limit)
    if not re.fullmatch(r"0*[0-9]{1,3}", text, re.ASCII) or not 1 <= int(text[-3:]) <= MAX_PAGE:
        message = f"Invalid 'limit': expected an integer from 1 to {MAX_PAGE}, but got '{text[:20]}'."
        raise BadRequest(message, param="limit")
    return int(text)


Limit = Annotated[
    int,
    BeforeValidator(read_limit),
    Query(description="Entries a page.", json_schema_extra={"minimum": 1, "maximum": MAX_PAGE}),
]
OrderOf = Annotated[
    Order,
    BeforeValidator(lambda order: one_of(ORDERS, order, "order")),
    Query(description="`desc` begins with the last entry."),
]
After = Annotated[str | None, Query(description="The page begins after the entry with this id.")]


async def page_of(limit: Limit = 20, order: OrderOf = "desc", after: After = None) -> Page:
    """Return the page that the query asks for. Raises BadRequest."""
    return Page(limit, order, after)


PageDep = Annotated[Page, Depends(page_of)]

Since = Annotated[
    str | None,
    Query(alias="from", description="From this day in UTC (`2026-11-01`) or these Unix seconds on."),
]
Until = Annotated[str | None, Query(description="Until the end of this day in UTC, or before these Unix seconds.")]


async def period_of(since: Since = None, to: Until = None) -> Period:
    """Return the period that the query asks for. Raises BadRequest."""
    return read_period(since, to)


PeriodDep = Annotated[Period, Depends(period_of)]


def choice(param: str, allowed: Sequence[Text]) -> BeforeValidator:
    """Return a validator of a parameter that has one of these values; an empty one counts as left out."""
    return BeforeValidator(lambda text: one_of(allowed, text, param) if text else None)


Format = Annotated[
    Literal["json", "csv"] | None,
    choice("format", ("json", "csv")),
    Query(description="`csv` for a file with a line for each entry."),
]


async def wants_csv(format: Format = None) -> bool:  # named as the query names it
    """Return whether the query asks for a file. Raises BadRequest."""
    return format == "csv"


CsvDep = Annotated[bool, Depends(wants_csv)]


def by_parameter(*names: Grouping) -> FieldInfo:
    """Return the description of a grouping in the query."""
    found: FieldInfo = Query(description=f"What the sums are of, separated by commas: {', '.join(names)}.")
    return found


def read_grouping(by: str | None, allowed: Collection[Grouping]) -> list[Grouping]:
    """Return the groupings of sums, in the order of GROUPINGS. Raises BadRequest."""
    names = [name.strip() for name in (by or "").split(",") if name.strip()]
    chosen = {one_of([each for each in GROUPINGS if each in allowed], name, "by") for name in names}
    return [each for each in GROUPINGS if each in chosen]
