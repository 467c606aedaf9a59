"""/v1/darkroom/results and /v1/darkroom/responses: a key's images and responses, to find them again."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from server.accounts.paging import Page
from server.accounts.results import ResultFilter
from server.errors import NotFound
from server.flows.operators.reports import result_entry
from server.http.deps import Caller, ServicesDep, public_base, query_flag
from server.http.listings import Fetch, listing_route
from server.http.openapi import errors
from server.http.queries import PeriodDep
from server.schemas.usage import DeletedResult, ResponseSummary, ResponseSummaryList, ResultEntry, ResultList

router = APIRouter(prefix="/v1/darkroom")

Name = Annotated[str, Path(description="The image's id: the last part of its URL.")]
OfModel = Annotated[str | None, Query(description="Only images of this model.")]
Words = Annotated[str, Query(description="Only images whose prompt has all of these words.")]
MadeFrom = Annotated[str | None, Query(description="Only images that were made from this one: its id.", max_length=60)]
Roots = Annotated[str, Query(description="`true` for those that continue no other.")]


@listing_route(router, "/results", ResultList, responses=errors(400))
async def list_results(
    request: Request,
    key: Caller,
    services: ServicesDep,
    period: PeriodDep,
    model: OfModel = None,
    q: Words = "",
    parent: MadeFrom = None,
) -> Fetch:
    """List the key's images.

    Returns a page of the key's stored images, with their prompts, seeds and references if the server keeps prompts:
    newest first unless asked otherwise.
    """
    wanted = ResultFilter(key.id, model, q.split()[:20], parent, period)
    base = public_base(request, services)

    def fetch(page: Page) -> list[ResultEntry]:
        return [result_entry(result, base) for result in services.stores.results.page(wanted, page)]

    return fetch


@router.get("/results/{name}", response_description="The image.", responses=errors(404))
async def show_result(request: Request, name: Name, key: Caller, services: ServicesDep) -> ResultEntry:
    """Show one of the key's images.

    Returns the size of an image, its URL, and its prompt, seed and references if the server keeps prompts.
    """
    result = await services.stores.results.in_reader(services.stores.results.find, name, key.id)
    if result is None:
        raise _no_image(name)
    return result_entry(result, public_base(request, services))


@router.delete("/results/{name}", response_description="The image is gone.", responses=errors(404))
async def delete_result(name: Name, key: Caller, services: ServicesDep) -> DeletedResult:
    """Delete an image.

    Deletes an image's file, and its seed, prompt and parameters. Its charge stays.
    """
    # the record first: a file without one is swept
    if not await services.stores.results.in_writer(services.stores.results.delete, name, key.id):
        raise _no_image(name)
    await services.stores.files.in_thread(services.stores.files.delete, [name])
    await services.images.thumbnails.delete(name)
    return DeletedResult(id=name)


@listing_route(router, "/responses", ResponseSummaryList, responses=errors(400))
async def list_responses(key: Caller, services: ServicesDep, roots: Roots = "") -> Fetch:
    """List the key's responses.

    Returns a page of the key's stored responses, each with the beginning of the user's text: newest first unless asked
    otherwise.
    """
    roots_only = query_flag("roots", roots)

    def fetch(page: Page) -> list[ResponseSummary]:
        return services.responses.stored.summaries(key.id, page, roots_only=roots_only)

    return fetch


def _no_image(name: str) -> NotFound:
    message = f"There is no image '{name[:60]}' of this key; it may have been deleted."
    return NotFound(message, code="result_not_found")
