"""/v1/batches: create, list, show and cancel batches, and read their answers."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response, StreamingResponse

from server.accounts.fingerprints import fingerprint
from server.http import examples
from server.http.bodies import read_json
from server.http.delivery import WatchedResponse
from server.http.deps import Caller, ServicesDep, ignored_header, read_retry_info
from server.http.openapi import CREATE_ERRORS, IDEMPOTENCY_KEY, Responses, errors, json_body, returns
from server.http.public_address import own_address
from server.http.queries import PageDep
from server.schemas.batches import BatchBody, BatchList, BatchObject
from server.schemas.validation import ignored_fields, validate

router = APIRouter(prefix="/v1/batches")
BatchId = Annotated[str, Path(description="The id of a batch of this key.")]
LINES: Responses = {200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}}


@router.post(
    "",
    response_description="The batch.",
    responses=returns(BatchObject, *CREATE_ERRORS, headers=["x-darkroom-ignored", "Idempotency-Replayed"]),
    openapi_extra={"parameters": [IDEMPOTENCY_KEY], "requestBody": json_body(BatchBody, examples.BATCH)},
)
async def create(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Create a batch.

    Runs many calls of images, chats and responses, each as if it were sent by itself, and charges each once. Lines are
    JSONL as OpenAI has it: `custom_id`, `method`, `url` and `body`. A retry gets the batch that there is.
    """
    values = await read_json(request, key, services)
    body = await asyncio.to_thread(partial(validate, BatchBody, values, strict=True))
    meant = body.model_dump(mode="json", exclude_defaults=True)
    retry = read_retry_info(request, await asyncio.to_thread(fingerprint, values, meant, ()))
    flow, base = services.batches.flow, own_address(request, services.settings.public_urls)
    batch, replayed = await flow.create(key, body, base, retry)
    headers = ignored_header(ignored_fields(BatchBody, values))
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return WatchedResponse(batch.model_dump_json(), headers, partial(flow.mark_lost, batch.id))


@router.get("", response_description="A page of batches.", responses=errors(400))
async def list_batches(key: Caller, services: ServicesDep, page: PageDep) -> BatchList:
    """List batches.

    Returns a page of the key's batches.
    """
    return await services.batches.flow.page(key, page)


@router.get("/{batch_id}", response_description="The batch.", responses=errors(404))
async def show(batch_id: BatchId, key: Caller, services: ServicesDep) -> BatchObject:
    """Show a batch.

    Tells how many lines of a batch have ended, and where the answers are.
    """
    return await services.batches.flow.show(key, batch_id)


@router.post("/{batch_id}/cancel", response_description="The batch after that.", responses=errors(404))
async def cancel(batch_id: BatchId, key: Caller, services: ServicesDep) -> BatchObject:
    """Cancel a batch.

    Begins no more lines. Those that run end as they do, and are charged. A batch that has ended stays as it is.
    """
    return await services.batches.flow.cancel(key, batch_id)


@router.get(
    "/{batch_id}/output",
    response_class=StreamingResponse,
    response_description="The answers, a line of JSON each.",
    responses={**LINES, **errors(404)},
)
async def output(batch_id: BatchId, key: Caller, services: ServicesDep) -> StreamingResponse:
    """Read a batch's answers.

    Returns a line of JSON for each line of the batch, in their order, with its `custom_id` and its `response` or, if it
    was not run, its `error`. While the batch runs, these are the lines that have ended.
    """
    return StreamingResponse(await services.batches.flow.output(key, batch_id), media_type="application/jsonl")
