"""/v1/darkroom/results and /v1/darkroom/responses: what a key has made, to find it again."""

from fastapi import APIRouter, Query, Request

from server.accounts.paging import Page
from server.accounts.results import ResultFilter
from server.errors import NotFound
from server.flows.operators.periods import read_period
from server.flows.operators.reports import result_entry
from server.http.deps import Caller, ServicesDep, public_base, query_flag
from server.http.openapi import answer, openapi, parameter
from server.http.paging import page_parameters
from server.http.queries import PERIOD, PageDep, read_listing
from server.schemas.usage import DeletedResult, ResponseSummary, ResponseSummaryList, ResultEntry, ResultList

router = APIRouter(prefix="/v1/darkroom")

NAME = parameter("path", "name", "The picture's id: the last part of its URL.")


@router.get(
    "/results",
    **openapi(
        "List the key's pictures",
        "Returns a page of the key's stored pictures, with what they were made from if the server keeps prompts.",
        parameters=[
            parameter("query", "model", "Only pictures of this model."),
            parameter("query", "q", "Only pictures whose prompt has all of these words."),
            *PERIOD,
            *page_parameters("picture"),
        ],
        success=answer("A page of pictures.", ResultList),
        errors=[400, 401, 500, 503],
    ),
)
async def list_results(
    request: Request,
    key: Caller,
    services: ServicesDep,
    page: PageDep,
    model: str | None = None,
    q: str = "",
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
) -> ResultList:
    """The key's pictures, newest first unless asked otherwise."""
    wanted = ResultFilter(key.id, model, q.split()[:20], read_period(since, to))
    base = public_base(request, services)

    def fetch(page: Page) -> list[ResultEntry]:
        return [result_entry(result, base) for result in services.stores.results.page(wanted, page)]

    return await read_listing(services.stores.database, ResultList, fetch, page)


@router.get(
    "/results/{name}",
    **openapi(
        "Show one of the key's pictures",
        "Returns the size of a picture, its URL, and what it was made from if the server keeps prompts.",
        parameters=[NAME],
        success=answer("The picture.", ResultEntry),
        errors=[401, 404, 500, 503],
    ),
)
async def show_result(request: Request, name: str, key: Caller, services: ServicesDep) -> ResultEntry:
    """One picture."""
    result = await services.stores.results.in_reader(services.stores.results.find, name, key.id)
    if result is None:
        raise _no_picture(name)
    return result_entry(result, public_base(request, services))


@router.delete(
    "/results/{name}",
    **openapi(
        "Delete a picture",
        "Forgets a picture and what it was made from, and deletes its file. Its charge stays.",
        parameters=[NAME],
        success=answer("The picture is gone.", DeletedResult),
        errors=[401, 404, 500, 503],
    ),
)
async def delete_result(name: str, key: Caller, services: ServicesDep) -> DeletedResult:
    """The record first: a file without one is swept."""
    if not await services.stores.results.in_writer(services.stores.results.delete, name, key.id):
        raise _no_picture(name)
    await services.stores.files.in_thread(services.stores.files.delete, [name])
    await services.images.thumbnails.delete(name)
    return DeletedResult(id=name)


@router.get(
    "/responses",
    **openapi(
        "List the key's responses",
        "Returns a page of the key's stored responses, each with the beginning of what the user said.",
        parameters=[
            parameter("query", "roots", "`true` for those that continue no other."),
            *page_parameters("response"),
        ],
        success=answer("A page of responses.", ResponseSummaryList),
        errors=[400, 401, 500, 503],
    ),
)
async def list_responses(key: Caller, services: ServicesDep, page: PageDep, roots: str = "") -> ResponseSummaryList:
    """The key's responses, newest first unless asked otherwise."""
    roots_only = query_flag("roots", roots)

    def fetch(page: Page) -> list[ResponseSummary]:
        return services.responses.stored.summaries(key.id, page, roots_only=roots_only)

    return await read_listing(services.stores.database, ResponseSummaryList, fetch, page)


def _no_picture(name: str) -> NotFound:
    message = f"There is no picture '{name[:60]}' of this key; it may have been deleted."
    return NotFound(message, code="result_not_found")
