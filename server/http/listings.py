"""Lists that come in pages, or whole as a CSV file: one route for all of them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from fastapi import APIRouter, Depends
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from server.accounts.db import Database
from server.accounts.paging import Page, UnknownEntry
from server.errors import BadRequest
from server.flows.operators.csv_text import csv_text
from server.http.deps import ServicesDep
from server.http.openapi import Responses
from server.http.queries import CsvDep, PageDep
from server.schemas.base import Listed, Listing

CSV_ROWS = 500  # a piece of a streamed file
CSV: Responses = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}

Fetch = Callable[[Page], Sequence[Listed]]  # blocks, and raises UnknownEntry; one entry more says that there are more
FindT = TypeVar("FindT", bound=Callable[..., Awaitable[Fetch]])


def listing_route(
    router: APIRouter, path: str, listing: type[Listing[Any]], *, file: str | None = None, responses: Responses
) -> Callable[[FindT], FindT]:
    """Return a decorator that makes a GET route of a function. The function takes the filters of the list, and returns
    a function that fetches a page; its docstring describes the route. `file` names a CSV file that the list can be
    too."""
    (entry,) = get_args(listing.model_fields["data"].annotation)

    def register(find: FindT) -> FindT:
        async def page_only(services: ServicesDep, page: PageDep, fetch: Annotated[Fetch, Depends(find)]) -> Response:
            return await _page(services.stores.database, listing, fetch, page)

        async def page_or_file(
            services: ServicesDep, page: PageDep, fetch: Annotated[Fetch, Depends(find)], as_csv: CsvDep
        ) -> Response:
            database = services.stores.database
            if as_csv:
                return csv_response(_stream_entries(database, entry, fetch), file or "")
            return await _page(database, listing, fetch, page)

        router.get(
            path,
            name=find.__name__,
            description=find.__doc__,
            response_model=listing,
            response_description="A page of the list.",
            responses={**(CSV if file else {}), **responses},
        )(page_or_file if file else page_only)
        return find

    return register


async def _page(database: Database, listing: type[Listing[Any]], fetch: Fetch, page: Page) -> Response:
    """Return a page of a list. Raises BadRequest for an unknown `after`."""
    try:
        entries = await database.in_reader(fetch, page)
    except UnknownEntry as error:
        raise BadRequest(f"There is no entry '{page.after}' in this list.", param="after") from error
    return json_response(listing.of(entries, page.limit))


async def _stream_entries(database: Database, entry: type[BaseModel], fetch: Fetch) -> AsyncIterator[str]:
    """Yield every entry, oldest first, read while it is sent."""
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


def csv_response(text: AsyncIterator[str], name: str) -> StreamingResponse:
    """Return a response that streams a CSV file of this name."""
    headers: Mapping[str, str] = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(text, media_type="text/csv", headers=headers)


def json_response(answer: BaseModel) -> Response:
    """Return the answer as JSON, without FastAPI's validation and second serialization."""
    return Response(answer.model_dump_json(), media_type="application/json")
