"""What lists and reports take in their query: a page, a period, a grouping, a format."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from server.accounts.db import Database
from server.accounts.paging import Page, UnknownEntry
from server.accounts.usage import GROUPINGS, Grouping
from server.errors import BadRequest
from server.flows.operators.csv_text import csv_text
from server.http.openapi import Json, parameter
from server.http.paging import read_limit, read_order
from server.schemas.listing import EntryT, Listing
from server.schemas.validation import one_of

CSV_ROWS = 500  # a piece of a streamed file
ListingT = TypeVar("ListingT", bound=Listing[Any])

PERIOD: Sequence[Json] = (
    parameter("query", "from", "From this day in UTC (`2026-11-01`) or these Unix seconds on."),
    parameter("query", "to", "Until the end of this day in UTC, or before these Unix seconds."),
)
FORMAT = parameter("query", "format", "`csv` for a file with a line for each entry.", enum=["json", "csv"])


def by_parameter(*names: Grouping) -> Json:
    """The query's parameter of a grouping."""
    return parameter("query", "by", f"What the sums are of, separated by commas: {', '.join(names)}.")


def page_of(limit: str = "20", order: str = "desc", after: str | None = None) -> Page:
    """Raises BadRequest."""
    return Page(read_limit(limit), read_order(order), after)


PageDep = Annotated[Page, Depends(page_of)]


def read_grouping(by: str | None, allowed: Collection[Grouping]) -> list[Grouping]:
    """In the order of GROUPINGS. Raises BadRequest."""
    names = [name.strip() for name in (by or "").split(",") if name.strip()]
    chosen = {one_of([each for each in GROUPINGS if each in allowed], name, "by") for name in names}
    return [each for each in GROUPINGS if each in chosen]


def wants_csv(format_: str | None) -> bool:
    """Raises BadRequest."""
    return one_of(("json", "csv"), format_ or "json", "format") == "csv"


async def read_listing(
    database: Database, listing: type[ListingT], fetch: Callable[[Page], Sequence[EntryT]], page: Page
) -> ListingT:
    """A page of a list. `fetch` blocks, and raises UnknownEntry. Raises BadRequest for an unknown `after`."""
    try:
        entries = await database.in_reader(fetch, page)
    except UnknownEntry as error:
        raise BadRequest(f"There is no entry '{page.after}' in this list.", param="after") from error
    return listing.of(entries, page.limit)


def csv_download(
    database: Database, entry: type[BaseModel], fetch: Callable[[Page], Sequence[EntryT]], name: str
) -> StreamingResponse:
    """Every entry, oldest first, read while it is sent."""

    async def pieces() -> AsyncIterator[str]:
        columns = [field for field in entry.model_fields if field != "object"]
        after: str | None = None
        first = True
        while True:
            entries = await database.in_reader(fetch, Page(CSV_ROWS, "asc", after))
            shown = entries[:CSV_ROWS]
            yield csv_text(columns, (each.model_dump() for each in shown), header=first)
            if len(entries) <= CSV_ROWS:
                return
            first, after = False, shown[-1].id

    return csv_response(pieces(), name)


def csv_response(text: AsyncIterator[str], name: str) -> StreamingResponse:
    """A file of this name."""
    headers: Mapping[str, str] = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(text, media_type="text/csv", headers=headers)
