"""/v1/responses: create, retrieve, delete, cancel, and list what went in."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from server.accounts.keys import Key
from server.errors import BadRequest, Overloaded
from server.flows.fingerprint import fingerprint
from server.flows.images.idempotency import Visit
from server.flows.rate_limits import limit_headers
from server.flows.responses.count_tokens import count_input
from server.flows.responses.create import open_response
from server.flows.responses.retrieve import (
    cancel_response,
    delete_response,
    list_inputs,
    show_response,
    stream_response,
)
from server.http.delivery import KeptAlive, UntilGone
from server.http.deps import Caller, ServicesDep, ignored_header, public_base, visit, wants_keepalive
from server.http.sse import SEPARATOR, event, event_stream
from server.schemas.hosted_fields import refuse_unsupported
from server.schemas.responses import UNSUPPORTED, ResponseBody
from server.schemas.validation import ignored_fields, parse_json, validate
from server.services import Services
from server.state.active_responses import LiveResponse

router = APIRouter(prefix="/v1/responses")

MAX_PAGE = 100


@router.post("")
async def create(request: Request, key: Caller, services: ServicesDep) -> Response:
    """An answer, a stream of one, or a response that runs in the background."""
    values = await asyncio.to_thread(parse_json, await request.body())
    refuse_unsupported(values, UNSUPPORTED)
    body = await asyncio.to_thread(partial(validate, ResponseBody, values, strict=True))
    headers = ignored_header(ignored_fields(ResponseBody, values))
    known_by = visit(request, await asyncio.to_thread(fingerprint, body.model_dump(mode="json"), ()))
    keepalive = wants_keepalive(request, key)
    base = public_base(request, services)
    return UntilGone(partial(_answer, services, key, body, base, known_by, headers, keepalive))


@router.post("/input_tokens")
async def input_tokens(request: Request, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """How long the input would be."""
    values = await asyncio.to_thread(parse_json, await request.body())
    refuse_unsupported(values, UNSUPPORTED)
    body = await asyncio.to_thread(partial(validate, ResponseBody, values, strict=True))
    return {"object": "response.input_tokens", "input_tokens": await count_input(services, key, body)}


@router.get("/{response_id}")
async def retrieve(
    response_id: str,
    key: Caller,
    services: ServicesDep,
    stream: Literal["true", "false"] = "false",
    starting_after: str = "-1",
) -> Response:
    """A stored response, or its stream from an event on."""
    if stream == "false":
        return await _json(await show_response(services, key, response_id), {})
    if not re.fullmatch(r"-?\d{1,12}", starting_after):
        raise BadRequest("Invalid type for 'starting_after': expected an integer.", param="starting_after")
    events = await stream_response(services, key, response_id, int(starting_after))
    return event_stream(_events(events), services.settings.keepalive_s, {})


@router.delete("/{response_id}")
async def delete(response_id: str, key: Caller, services: ServicesDep) -> Response:
    """Forget a response and its items."""
    return await _json(await delete_response(services, key, response_id), {})


@router.post("/{response_id}/cancel")
async def cancel(response_id: str, key: Caller, services: ServicesDep) -> Response:
    """End a background response."""
    return await _json(await cancel_response(services, key, response_id), {})


@router.get("/{response_id}/input_items")
async def input_items(
    response_id: str,
    key: Caller,
    services: ServicesDep,
    limit: str = "20",
    order: Annotated[str, Query()] = "desc",
    after: str | None = None,
) -> Response:
    """A page of the items that went in."""
    if not re.fullmatch(r"0*[0-9]{1,3}", limit, re.ASCII) or not 1 <= int(limit[-3:]) <= MAX_PAGE:
        message = f"Invalid 'limit': expected an integer from 1 to {MAX_PAGE}, but got '{limit[:20]}'."
        raise BadRequest(message, param="limit")
    if order not in {"asc", "desc"}:
        raise BadRequest("Invalid value: 'order'. Supported values are: 'asc', 'desc'.", param="order")
    chosen: Literal["asc", "desc"] = "asc" if order == "asc" else "desc"
    return await _json(await list_inputs(services, key, response_id, int(limit), chosen, after), {})


async def _answer(
    services: Services,
    key: Key,
    body: ResponseBody,
    base: str,
    known_by: Visit,
    headers: dict[str, str],
    keepalive: bool,
    stack: AsyncExitStack,
) -> ASGIApp:
    """A stream begins once the engine has admitted the request. Raises ApiError before that."""
    live = await open_response(services, key, body, base, known_by)
    headers |= limit_headers(services, key) | ({"Idempotency-Replayed": "true"} if live.replayed else {})
    stack.enter_context(live.listening())
    if body.stream:
        if not body.background:
            await live.admission()
        return event_stream(_events(live.follow()), services.settings.keepalive_s, headers)
    if body.background:
        return await _json(live.object(), headers)
    if keepalive:
        await live.admission()
        return KeptAlive(partial(_whole, live), services.settings.keepalive_s, headers)
    return Response(await _whole(live), media_type="application/json", headers=headers)


async def _whole(live: LiveResponse) -> bytes:
    """The body, once the response has ended. Raises ApiError."""
    await live.end_of_it()
    if live.failure is not None:
        raise live.failure
    if live.status == "cancelled":
        raise Overloaded("The response was stopped before its end. Please send the request again.", 2)
    return await _encoded(live.object())


async def _events(items: AsyncIterator[dict[str, Any]]) -> AsyncIterator[ServerSentEvent]:
    async for item in items:
        yield event(item, item["type"])
    yield ServerSentEvent("[DONE]", sep=SEPARATOR)


async def _json(value: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(await _encoded(value), media_type="application/json", headers=headers)


async def _encoded(value: dict[str, Any]) -> bytes:
    """Pictures make large bodies: they are written in a thread."""
    return await asyncio.to_thread(lambda: json.dumps(value, separators=(",", ":")).encode())
