"""POST /v1/chat/completions."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from pipelines.catalog.chat import Upstream
from pipelines.protocol.chat import ChatSpec
from server.backends.upstream import Answer, Json
from server.errors import ApiError, BadRequest, EngineFailure
from server.flows.chat.complete import new_head, start_chat
from server.flows.chat.completion import chunks, collect
from server.flows.chat.models import find_chat_model
from server.flows.chat.moderation import check_chat
from server.flows.chat.parse import read_chat, without_effect
from server.flows.chat.request import ChatCall
from server.flows.chat.run import Tally
from server.flows.chat.upstream import ask_upstream, stream_upstream
from server.flows.rate_limits import limit_headers, place, placed
from server.http.delivery import KeptAlive, UntilGone
from server.http.deps import Caller, ServicesDep, ignored_header, wants_keepalive
from server.http.sse import SEPARATOR, event, event_stream
from server.schemas.validation import parse_json
from server.services import Services

router = APIRouter(prefix="/v1/chat/completions")


@router.post("")
async def complete(request: Request, key: Caller, services: ServicesDep) -> Response:
    """An answer, or a stream of one, by the model that is named."""
    values = await asyncio.to_thread(parse_json, await request.body())
    model = find_chat_model(services.catalog, _model_name(values), key.groups)
    services.calls.check_open()
    tally = Tally(key, model.name)
    if isinstance(model.source, Upstream):
        await check_chat(services, tally, values)
        pass_on = _stream_on if values.get("stream") is True else _pass_on
        return UntilGone(partial(pass_on, services, model.source, values, tally))
    call = await asyncio.to_thread(read_chat, values)
    headers, keepalive = ignored_header(without_effect(values)), wants_keepalive(request, key)
    return UntilGone(partial(_answer, services, call, model.source, tally, headers, keepalive))


async def _answer(
    services: Services,
    call: ChatCall,
    spec: ChatSpec,
    tally: Tally,
    headers: dict[str, str],
    keepalive: bool,
    stack: AsyncExitStack,
) -> ASGIApp:
    """The answer of a local model. It may begin once the engine has admitted the chat. Raises ApiError before that."""
    head, every_s = new_head(tally.model, spec), services.settings.keepalive_s
    running = placed(services, tally.key, start_chat(services, call, spec, head, tally))
    events = await stack.enter_async_context(aclosing(running))
    await anext(events)
    headers |= limit_headers(services, tally.key)
    if call.stream:
        told = chunks(head, events, logprobs=call.logprobs, include_usage=call.include_usage)
        return event_stream(_events(told), every_s, headers)

    async def body() -> bytes:
        return json.dumps(await collect(head, events, call.n, logprobs=call.logprobs)).encode()

    if keepalive:
        return KeptAlive(body, every_s, headers)
    return Response(await body(), media_type="application/json", headers=headers)


async def _pass_on(services: Services, upstream: Upstream, values: Json, tally: Tally, _: AsyncExitStack) -> Response:
    with place(services, tally.key):
        answer = await ask_upstream(services, upstream, values, tally)
        return _passed(answer, limit_headers(services, tally.key))


async def _stream_on(
    services: Services, upstream: Upstream, values: Json, tally: Tally, stack: AsyncExitStack
) -> Response:
    """The upstream's stream, once its first chunk is there, or what came instead. Raises ApiError before that."""
    running = placed(services, tally.key, stream_upstream(services, upstream, values, tally))
    items = await stack.enter_async_context(aclosing(running))
    first = await anext(items, None)
    if first is None:
        message = f"The server behind model `{tally.model}` sent an empty stream."
        raise EngineFailure(message, code="upstream_failed")
    headers = limit_headers(services, tally.key)
    if isinstance(first, Answer):
        return _passed(first, headers)
    return event_stream(_events(_from_first(first, items)), services.settings.keepalive_s, headers)


async def _from_first(first: Json, rest: AsyncGenerator[Answer | Json, None]) -> AsyncIterator[Json]:
    yield first
    async for item in rest:
        if not isinstance(item, Answer):
            yield item


async def _events(items: AsyncIterator[Json]) -> AsyncIterator[ServerSentEvent]:
    """Events without names. A failure on the way is the last of them, and the SDKs raise it."""
    try:
        async for item in items:
            yield event(item)
    except ApiError as error:
        yield event(error.body())
        return
    yield ServerSentEvent("[DONE]", sep=SEPARATOR)


def _passed(answer: Answer, headers: Mapping[str, str]) -> Response:
    return JSONResponse(answer.body, status_code=answer.status, headers={**headers, **answer.headers})


def _model_name(values: dict[str, Any]) -> str | None:
    name = values.get("model")
    if name is not None and not isinstance(name, str):
        message = f"Invalid type for 'model': expected a string, but got {type(name).__name__} instead."
        raise BadRequest(message, param="model", code="invalid_type")
    return name
