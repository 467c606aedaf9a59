"""/v1/responses: create, retrieve, delete, cancel, and list the input items."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BeforeValidator
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from server.accounts.fingerprints import fingerprint
from server.accounts.keys import Key
from server.errors import BadRequest, ServerStopping
from server.flows.responses.request import read_compaction, read_response
from server.flows.retries import RetryInfo
from server.http import examples
from server.http.bodies import read_json
from server.http.delivery import RECORDED, CancelOnDisconnect, KeepAliveJson, attach
from server.http.deps import (
    Caller,
    ServicesDep,
    ignored_header,
    name_ignored,
    public_base,
    query_flag,
    read_retry_info,
    truncated_header,
    wants_keepalive,
)
from server.http.openapi import (
    CREATE_ERRORS,
    CREATE_HEADERS,
    IDEMPOTENCY_KEY,
    KEEPALIVE,
    RUN_ERRORS,
    errors,
    event_stream_of,
    json_body,
    returns,
)
from server.http.queries import PageDep
from server.http.sse import SEPARATOR, event, event_stream
from server.schemas.extra_fields import NO_EFFECT, ignored_options
from server.schemas.response_answers import InputItemList
from server.schemas.response_events import Event, ResponseEvent
from server.schemas.response_object import CompactedResponse, DeletedResponse, InputTokenCount, ResponseObject
from server.schemas.responses import CompactBody, ResponseBody
from server.schemas.validation import ignored_fields
from server.services import Services
from server.state.active_responses import ActiveResponse


@dataclass(frozen=True, slots=True)
class RequestedResponse:
    """A response that a request asks for. `headers` name the fields without effect."""

    key: Key
    body: ResponseBody
    retry_info: RetryInfo
    headers: dict[str, str]


def read_start(starting_after: str | int) -> int:
    """Return the number of the event after which a stream begins. Raises BadRequest."""
    if not re.fullmatch(r"-?\d{1,12}", str(starting_after)):
        raise BadRequest("Invalid type for 'starting_after': expected an integer.", param="starting_after")
    return int(starting_after)


router = APIRouter(prefix="/v1/responses")

TEMPLATE_FIELDS = {
    "reasoning_effort": "reasoning.effort",
    "enable_thinking": "reasoning.effort",
    "verbosity": "text.verbosity",
}
ResponseId = Annotated[str, Path(description="The id of a response of this key that was created with `store`.")]
AsStream = Annotated[str, Query(description="`true` for the stream.")]
StartingAfter = Annotated[
    int,
    BeforeValidator(read_start),
    Query(description="The stream begins after this `sequence_number`."),
]
EVENTS = event_stream_of(ResponseEvent, examples=examples.RESPONSE_EVENTS)
BODY = json_body(ResponseBody, examples.RESPONSE)


@router.post(
    "",
    response_description="The response, as JSON or as a stream of events.",
    responses=returns(ResponseObject, *CREATE_ERRORS, stream=EVENTS, headers=CREATE_HEADERS),
    openapi_extra={"parameters": [IDEMPOTENCY_KEY, KEEPALIVE], "requestBody": BODY},
)
async def create(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Create a response.

    Answers a text or items, and draws images if the body has the image tool. A field that is null counts as absent.
    With `stream`, each event has the `type` of its data as its name, and the last one is `data: [DONE]`. With
    `background`, the answer comes at once and the response is read by its id.
    """
    values = await read_json(request, key, services)
    sent, unread = await asyncio.to_thread(read_response, values)
    body, left_out = services.responses.creator.leave_out_unknown(key, sent)
    headers = ignored_header([*ignored_fields(ResponseBody, values, NO_EFFECT), *unread, *left_out])
    meant = sent.model_dump(mode="json", exclude_defaults=True)
    request_print = await asyncio.to_thread(fingerprint, values, meant, ())
    asked = RequestedResponse(key, body, read_retry_info(request, request_print), headers)
    return CancelOnDisconnect(partial(_answer, request, services, asked))


@router.post(
    "/input_tokens",
    response_description="The count.",
    responses=errors(*RUN_ERRORS),
    openapi_extra={"requestBody": BODY},
)
async def input_tokens(request: Request, key: Caller, services: ServicesDep) -> InputTokenCount:
    """Count input tokens.

    Counts the tokens that the model would read for this body, earlier rounds included. Nothing is generated.
    """
    values = await read_json(request, key, services)
    body, _ = await asyncio.to_thread(read_response, values)
    return {"object": "response.input_tokens", "input_tokens": await services.responses.token_counter.count(key, body)}


@router.post(
    "/compact",
    response_description="The items that stand for the conversation.",
    responses=returns(CompactedResponse, *RUN_ERRORS, headers=["x-darkroom-ignored"]),
    openapi_extra={"requestBody": json_body(CompactBody, examples.COMPACT)},
)
async def compact(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Compact a conversation.

    Makes a long conversation short: the user's messages stay, a summary by the model stands for all the rest. Send the
    output as the `input` of the next response.
    """
    values = await read_json(request, key, services)
    body, unread = await asyncio.to_thread(read_compaction, values)
    compacted, missing = await services.responses.compactor.compact(key, body)
    return await _json(compacted, ignored_header([*ignored_fields(CompactBody, values, NO_EFFECT), *unread, *missing]))


@router.get(
    "/{response_id}",
    response_description="The response, as JSON or as a stream of events.",
    responses=returns(ResponseObject, 400, 404, stream=EVENTS),
)
async def retrieve(
    response_id: ResponseId,
    key: Caller,
    services: ServicesDep,
    stream: AsStream = "false",
    starting_after: StartingAfter = -1,
) -> Response:
    """Get a response.

    Returns a stored response. A background response can be read as a stream too, also again and after its end; the last
    event is `data: [DONE]`.
    """
    if not query_flag("stream", stream):
        return await _json(await services.responses.stored.show(key, response_id), {})
    events = await services.responses.stored.stream(key, response_id, starting_after)
    return event_stream(_events(events), services.settings.keepalive_s, {})


@router.delete(
    "/{response_id}", response_description="The response is deleted.", responses=returns(DeletedResponse, 404)
)
async def delete(response_id: ResponseId, key: Caller, services: ServicesDep) -> Response:
    """Delete a response.

    Deletes a response and its items. If it still runs, it is cancelled.
    """
    return await _json(await services.responses.stored.delete(key, response_id), {})


@router.post(
    "/{response_id}/cancel",
    response_description="The response after that.",
    responses=returns(ResponseObject, 400, 404),
)
async def cancel(response_id: ResponseId, key: Caller, services: ServicesDep) -> Response:
    """Cancel a response.

    Cancels a background response. One that has ended stays as it is.
    """
    return await _json(await services.responses.stored.cancel(key, response_id), {})


@router.get(
    "/{response_id}/input_items",
    response_description="A page of items.",
    responses=returns(InputItemList, 400, 404),
)
async def input_items(response_id: ResponseId, key: Caller, services: ServicesDep, page: PageDep) -> Response:
    """List input items.

    Returns a page of the items that a response was created with.
    """
    items = await services.responses.stored.list_inputs(key, response_id, page.limit, page.order, page.after)
    return await _json(items, {})


async def _answer(request: Request, services: Services, asked: RequestedResponse, _: AsyncExitStack) -> ASGIApp:
    """Return the answer. A stream begins once the engine has admitted the request, or after `keepalive_s`, and so does
    an answer with keepalive. Raises ApiError before that."""
    key, body, base = asked.key, asked.body, public_base(request, services)
    response = await services.responses.creator.find_or_start(key, body, base, asked.retry_info)
    attach(request, response)
    request.scope.get(RECORDED, []).clear()  # it runs here
    # one that has ended may still be in the registry, while its events are recorded
    replayed = {"Idempotency-Replayed": "true"} if response.replayed or response.done else {}
    headers = asked.headers | services.admission.limiter.headers(key) | replayed
    keepalive, keepalive_s = wants_keepalive(request, key), services.settings.keepalive_s
    if not body.background:
        with suppress(TimeoutError):
            async with asyncio.timeout(keepalive_s if body.stream or keepalive else None):
                await response.wait_admitted()  # then it is known what the template does not read
    unread = dict.fromkeys(response.unread)
    headers = name_ignored(headers, [*ignored_options(response.unused_options, TEMPLATE_FIELDS), *unread])
    if body.stream:
        return event_stream(_events(response.follow()), keepalive_s, headers)
    if body.background:
        return await _json(response.object(), headers)
    if keepalive:
        return KeepAliveJson(partial(_body, response), keepalive_s, headers)
    content = await _body(response)
    drawn = [item for item in response.output if item["type"] == "image_generation_call"]
    cuts = dict.fromkeys(item["truncated"] for item in drawn if item.get("truncated"))
    headers |= truncated_header("; ".join(cuts))
    return Response(content, media_type="application/json", headers=headers)


async def _body(response: ActiveResponse) -> bytes:
    """Return the body, once the response has ended. Raises ApiError."""
    await response.wait_done()
    if response.failure is not None:
        raise response.failure
    if response.status == "cancelled":
        raise ServerStopping("The response was stopped before its end. Please send the request again.", 2)
    return await _encoded(response.object())


async def _events(items: AsyncIterator[Event]) -> AsyncIterator[ServerSentEvent]:
    async for item in items:
        yield event(item, item["type"])
    yield ServerSentEvent("[DONE]", sep=SEPARATOR)


async def _json(value: Mapping[str, object], headers: dict[str, str]) -> Response:
    return Response(await _encoded(value), media_type="application/json", headers=headers)


async def _encoded(value: Mapping[str, object]) -> bytes:
    """Encode JSON in a thread, since images make large bodies."""
    return await asyncio.to_thread(lambda: json.dumps(value, separators=(",", ":")).encode())
