"""/v1/responses: create, retrieve, delete, cancel, and list what went in."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from server.accounts.keys import Key
from server.errors import BadRequest, Overloaded
from server.flows.fingerprint import fingerprint
from server.flows.responses.left_out import unknown_options
from server.flows.retries import RetryInfo
from server.http import examples
from server.http.bodies import hold_body, read_json
from server.http.delivery import CancelOnDisconnect, KeepAliveJson
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
    answer,
    event_stream_of,
    json_body,
    openapi,
    parameter,
)
from server.http.paging import page_parameters, read_limit, read_order
from server.http.sse import SEPARATOR, event, event_stream
from server.schemas.hosted_fields import NO_EFFECT, refuse_unsupported
from server.schemas.local_models import ignored_options
from server.schemas.response_answers import (
    CompactedResponse,
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    ResponseObject,
)
from server.schemas.response_events import ResponseEvent
from server.schemas.response_tools import refuse_hosted_tools
from server.schemas.responses import UNSUPPORTED, CompactBody, ResponseBody
from server.schemas.validation import ignored_fields, validate
from server.services import Services
from server.state.active_responses import ActiveResponse

router = APIRouter(prefix="/v1/responses")

TEMPLATE_FIELDS = {
    "reasoning_effort": "reasoning.effort",
    "enable_thinking": "reasoning.effort",
    "verbosity": "text.verbosity",
}
RESPONSE_ID = parameter("path", "response_id", "The id of a response of this key that was created with `store`.")
EVENTS = event_stream_of(ResponseEvent, examples=examples.RESPONSE_EVENTS)
BODY = json_body(ResponseBody, examples.RESPONSE)


@router.post(
    "",
    **openapi(
        "Create a response",
        "Answers a text or items, and draws pictures if the body has the image tool. A field that is null counts as "
        "absent. With `stream`, each event has the `type` of its data as its name, and the last one is `data: [DONE]`. "
        "With `background`, the answer comes at once and the response is read by its id.",
        body=BODY,
        success=answer("The response, as JSON or as a stream of events.", ResponseObject),
        stream=EVENTS,
        parameters=[IDEMPOTENCY_KEY, KEEPALIVE],
        headers=CREATE_HEADERS,
        errors=CREATE_ERRORS,
    ),
)
async def create(request: Request, key: Caller, services: ServicesDep) -> Response:
    """An answer, a stream of one, or a response that runs in the background."""
    values = await read_json(request, key, services)
    refuse_unsupported(values, UNSUPPORTED)
    refuse_hosted_tools(values.get("tools"))
    body = await asyncio.to_thread(partial(validate, ResponseBody, values, strict=True))
    body, left_out = services.responses.creator.leave_out_unknown(key, body)
    left_out += unknown_options(values)
    headers = ignored_header([*ignored_fields(ResponseBody, values, NO_EFFECT), *left_out])
    request_print = await asyncio.to_thread(lambda: fingerprint(body.model_dump(mode="json"), ()))
    retry_info = read_retry_info(request, request_print)
    keepalive = wants_keepalive(request, key)
    base = public_base(request, services)
    return CancelOnDisconnect(partial(_answer, request, services, key, body, base, retry_info, headers, keepalive))


@router.post(
    "/input_tokens",
    **openapi(
        "Count input tokens",
        "Counts the tokens that the model would read for this body, earlier rounds included. Nothing is generated.",
        body=BODY,
        success=answer("The count.", InputTokenCount),
        errors=RUN_ERRORS,
    ),
)
async def input_tokens(request: Request, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """How long the input would be."""
    values = await read_json(request, key, services)
    refuse_unsupported(values, UNSUPPORTED)
    refuse_hosted_tools(values.get("tools"))
    body = await asyncio.to_thread(partial(validate, ResponseBody, values, strict=True))
    return {"object": "response.input_tokens", "input_tokens": await services.responses.token_counter.count(key, body)}


@router.post(
    "/compact",
    **openapi(
        "Compact a conversation",
        "Makes a long conversation short: the user's messages stay, a summary by the model stands for all the rest. "
        "Send the output as the `input` of the next response.",
        body=json_body(CompactBody, examples.COMPACT),
        success=answer("The items that stand for the conversation.", CompactedResponse),
        headers=["x-darkroom-ignored"],
        errors=RUN_ERRORS,
    ),
)
async def compact(request: Request, key: Caller, services: ServicesDep) -> Response:
    """What is left of a conversation."""
    values = await read_json(request, key, services)
    body = await asyncio.to_thread(partial(validate, CompactBody, values, strict=True))
    headers = ignored_header(ignored_fields(CompactBody, values, NO_EFFECT))
    return await _json(await services.responses.compactor.compact(key, body), headers)


@router.get(
    "/{response_id}",
    **openapi(
        "Get a response",
        "Returns a stored response. A background response can be read as a stream too, also again and after its end; "
        "the last event is `data: [DONE]`.",
        parameters=[
            RESPONSE_ID,
            parameter("query", "stream", "`true` for the stream.", type="string", default="false"),
            parameter(
                "query", "starting_after", "The stream begins after this `sequence_number`.", type="integer", default=-1
            ),
        ],
        success=answer("The response, as JSON or as a stream of events.", ResponseObject),
        stream=EVENTS,
        errors=[400, 401, 404, 500, 503],
    ),
)
async def retrieve(
    response_id: str,
    key: Caller,
    services: ServicesDep,
    stream: str = "",
    starting_after: str = "-1",
) -> Response:
    """A stored response, or its stream from an event on."""
    if not query_flag("stream", stream):
        return await _json(await services.responses.stored.show(key, response_id), {})
    if not re.fullmatch(r"-?\d{1,12}", starting_after):
        raise BadRequest("Invalid type for 'starting_after': expected an integer.", param="starting_after")
    events = await services.responses.stored.stream(key, response_id, int(starting_after))
    return event_stream(_events(events), services.settings.keepalive_s, {})


@router.delete(
    "/{response_id}",
    **openapi(
        "Delete a response",
        "Deletes a response and its items. If it still runs, it is cancelled.",
        parameters=[RESPONSE_ID],
        success=answer("The response is deleted.", DeletedResponse),
        errors=[401, 404, 500, 503],
    ),
)
async def delete(response_id: str, key: Caller, services: ServicesDep) -> Response:
    """Forget a response and its items."""
    return await _json(await services.responses.stored.delete(key, response_id), {})


@router.post(
    "/{response_id}/cancel",
    **openapi(
        "Cancel a response",
        "Cancels a background response. One that has ended stays as it is.",
        parameters=[RESPONSE_ID],
        success=answer("The response after that.", ResponseObject),
        errors=[400, 401, 404, 500, 503],
    ),
)
async def cancel(response_id: str, key: Caller, services: ServicesDep) -> Response:
    """End a background response."""
    return await _json(await services.responses.stored.cancel(key, response_id), {})


@router.get(
    "/{response_id}/input_items",
    **openapi(
        "List input items",
        "Returns a page of the items that a response was created with.",
        parameters=[
            RESPONSE_ID,
            *page_parameters("item"),
        ],
        success=answer("A page of items.", InputItemList),
        errors=[400, 401, 404, 500, 503],
    ),
)
async def input_items(
    response_id: str,
    key: Caller,
    services: ServicesDep,
    limit: str = "20",
    order: str = "desc",
    after: str | None = None,
) -> Response:
    """A page of the items that went in."""
    page = await services.responses.stored.list_inputs(key, response_id, read_limit(limit), read_order(order), after)
    return await _json(page, {})


async def _answer(
    request: Request,
    services: Services,
    key: Key,
    body: ResponseBody,
    base: str,
    retry_info: RetryInfo,
    headers: dict[str, str],
    keepalive: bool,
    stack: AsyncExitStack,
) -> ASGIApp:
    """A stream begins once the engine has admitted the request. Raises ApiError before that."""
    response = await services.responses.creator.find_or_start(key, body, base, retry_info)
    hold_body(request, response)
    # one that has ended may still be in the registry, while its events are recorded
    replayed = {"Idempotency-Replayed": "true"} if response.replayed or response.done else {}
    headers |= services.admission.limiter.headers(key) | replayed
    stack.enter_context(response.listening())
    if not body.background:
        await response.wait_admitted()  # then it is known what the template does not read
    headers = name_ignored(headers, ignored_options(response.unused_options, TEMPLATE_FIELDS))
    if body.stream:
        return event_stream(_events(response.follow()), services.settings.keepalive_s, headers)
    if body.background:
        return await _json(response.object(), headers)
    if keepalive:
        return KeepAliveJson(partial(_body, response), services.settings.keepalive_s, headers)
    content = await _body(response)
    cuts = dict.fromkeys(item["truncated"] for item in response.output if item.get("truncated"))
    headers |= truncated_header("; ".join(cuts))
    return Response(content, media_type="application/json", headers=headers)


async def _body(response: ActiveResponse) -> bytes:
    """The body, once the response has ended. Raises ApiError."""
    await response.wait_done()
    if response.failure is not None:
        raise response.failure
    if response.status == "cancelled":
        raise Overloaded("The response was stopped before its end. Please send the request again.", 2)
    return await _encoded(response.object())


async def _events(items: AsyncIterator[dict[str, Any]]) -> AsyncIterator[ServerSentEvent]:
    async for item in items:
        yield event(item, item["type"])
    yield ServerSentEvent("[DONE]", sep=SEPARATOR)


async def _json(value: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(await _encoded(value), media_type="application/json", headers=headers)


async def _encoded(value: dict[str, Any]) -> bytes:
    """Pictures make large bodies: they are written in a thread."""
    return await asyncio.to_thread(lambda: json.dumps(value, separators=(",", ":")).encode())
