"""/v1/darkroom/results and /v1/darkroom/responses: a key's images and responses, to find them again."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from server.accounts.keys import Key
from server.accounts.paging import Page
from server.accounts.results import ResultFilter
from server.errors import NotFound
from server.flows.operators.reports import result_entry
from server.http import examples
from server.http.bodies import JsonBody
from server.http.deps import Caller, ServicesDep, public_base, query_flag
from server.http.listings import Fetch, listing_route
from server.http.openapi import errors
from server.http.queries import PeriodDep
from server.schemas.reports import (
    DeletedResponses,
    DeletedResult,
    ResponseSummary,
    ResponseSummaryList,
    ResponseTitle,
    ResultEntry,
    ResultList,
)
from server.services import Services

router = APIRouter(prefix="/v1/darkroom")

Name = Annotated[str, Path(description="The image's id: the last part of its URL.")]
OfModel = Annotated[str | None, Query(description="Only images of this model.")]
Words = Annotated[str, Query(description="Only images whose prompt has all of these words.")]
MadeFrom = Annotated[str | None, Query(description="Only images that were made from this one: its id.", max_length=60)]
Favourites = Annotated[str, Query(description="`true` for the key's favourites.")]
Roots = Annotated[str, Query(description="`true` for those that continue no other.")]
Within = Annotated[
    str | None, Query(description="Only this response and those that continue it: its id.", max_length=60)
]
ResponseId = Annotated[str, Path(description="The id of a response of this key that was created with `store`.")]
Title = Annotated[ResponseTitle, Depends(JsonBody(ResponseTitle, examples.RESPONSE_TITLE))]


@listing_route(router, "/results", ResultList, responses=errors(400))
async def list_results(
    request: Request,
    key: Caller,
    services: ServicesDep,
    period: PeriodDep,
    model: OfModel = None,
    q: Words = "",
    parent: MadeFrom = None,
    favourite: Favourites = "",
) -> Fetch:
    """List the key's images.

    Returns a page of the key's stored images, with their prompts, seeds and references if the server keeps prompts:
    newest first unless asked otherwise.
    """
    favourites = query_flag("favourite", favourite)
    wanted = ResultFilter(key.id, model, q.split()[:20], parent, period, favourites=favourites)
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


@router.put("/results/{name}/favourite", response_description="The image.", responses=errors(404))
async def add_favourite(request: Request, name: Name, key: Caller, services: ServicesDep) -> ResultEntry:
    """Make an image a favourite.

    The list of images can show the favourites alone. They are kept as long as other images.
    """
    return await _mark(request, services, key, name, favourite=True)


@router.delete("/results/{name}/favourite", response_description="The image.", responses=errors(404))
async def remove_favourite(request: Request, name: Name, key: Caller, services: ServicesDep) -> ResultEntry:
    """Make an image no favourite.

    The image stays.
    """
    return await _mark(request, services, key, name, favourite=False)


@router.delete("/results/{name}", response_description="The image is gone.", responses=errors(404))
async def delete_result(name: Name, key: Caller, services: ServicesDep) -> DeletedResult:
    """Delete an image.

    Deletes an image's file, and its seed, prompt and parameters. Its charge stays.
    """
    results = services.stores.results
    # the record first: a file without one is swept
    if not await results.in_writer(results.delete, name, key.id):
        raise _no_image(name)
    await services.stores.files.in_thread(services.operations.storage_sweep.delete, name)
    await services.images.thumbnails.delete(name)
    return DeletedResult(id=name)


@listing_route(router, "/responses", ResponseSummaryList, responses=errors(400))
async def list_responses(key: Caller, services: ServicesDep, roots: Roots = "", root: Within = None) -> Fetch:
    """List the key's responses.

    Returns a page of the key's stored responses, each with its title or the beginning of the user's text: newest
    first unless asked otherwise.
    """
    roots_only = query_flag("roots", roots)

    def fetch(page: Page) -> list[ResponseSummary]:
        return services.responses.stored.summaries(key.id, page, roots_only=roots_only, root=root)

    return fetch


@router.patch("/responses/{response_id}", response_description="The response.", responses=errors(404))
async def name_response(response_id: ResponseId, key: Caller, body: Title, services: ServicesDep) -> ResponseSummary:
    """Give a response a title.

    The list of responses shows it in place of the beginning of the user's text.
    """
    return await services.responses.stored.name(key, response_id, body.title)


@router.delete("/responses/{response_id}", response_description="They are deleted.", responses=errors(404))
async def delete_responses(response_id: ResponseId, key: Caller, services: ServicesDep) -> DeletedResponses:
    """Delete a response and all that continue it.

    Deletes a conversation from this response on. What runs is cancelled. Charges and images stay.
    """
    return DeletedResponses(id=response_id, responses=await services.responses.stored.delete_tree(key, response_id))


async def _mark(request: Request, services: Services, key: Key, name: str, *, favourite: bool) -> ResultEntry:
    store = services.stores.results
    if not await store.in_writer(lambda: store.mark(name, key.id, favourite=favourite)):
        raise _no_image(name)
    return await show_result(request, name, key, services)


def _no_image(name: str) -> NotFound:
    return NotFound(f"There is no image '{name[:60]}' of this key; it may have been deleted.", code="result_not_found")
