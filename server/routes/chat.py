"""POST /v1/chat/completions."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

from pipelines.protocol.chat import Admitted, ChatSpec
from pipelines.protocol.upstream import Upstream
from server.accounts.keys import Key
from server.backends.upstream import Json, UpstreamResponse
from server.catalog.chat import ChatModel
from server.errors import BadRequest, EngineFailure
from server.flows.chat.complete import new_completion_head
from server.flows.chat.completion import chunks, collect
from server.flows.chat.moderation import check_upstream_chat
from server.flows.chat.parse import ineffective_fields, parse_chat
from server.flows.chat.request import ChatRequest
from server.flows.chat.run import UsageContext
from server.flows.models import find_chat_model
from server.http import examples
from server.http.bodies import read_json
from server.http.delivery import CancelOnDisconnect, KeepAliveJson
from server.http.deps import Caller, ServicesDep, idempotency_key_of, ignored_header, name_ignored, wants_keepalive
from server.http.keyed_chat import keyed_chat
from server.http.openapi import (
    CREATE_ERRORS,
    CREATE_HEADERS,
    IDEMPOTENCY_KEY,
    KEEPALIVE,
    answer,
    event_stream_of,
    json_body,
    openapi,
)
from server.http.pictured_chat import draws, pictured_completion
from server.http.sse import chat_events, event_stream
from server.schemas.chat import ChatBody
from server.schemas.chat_completion import ChatCompletion, ChatCompletionChunk
from server.schemas.errors import ErrorBody
from server.schemas.local_models import ignored_options
from server.services import Services
from server.state.active_chats import ENDPOINT

router = APIRouter(prefix="/v1/chat/completions")
TEMPLATE_FIELDS = {
    "reasoning_effort": "reasoning_effort",
    "enable_thinking": "reasoning_effort",
    "verbosity": "verbosity",
}


@router.post(
    "",
    **openapi(
        "Create a chat completion",
        "Continues a conversation. A field that is null counts as absent. With `stream`, the events have no names; the "
        "last one is `data: [DONE]`, or the error that ended the stream. A model that another server runs gets the "
        "body as it is, and that server's answer, whatever fields it has, is passed on.",
        body=json_body(ChatBody, examples.CHAT),
        success=answer("The completion, as JSON or as a stream of chunks.", ChatCompletion),
        stream=event_stream_of(ChatCompletionChunk, ErrorBody, examples=examples.CHAT_EVENTS),
        parameters=[IDEMPOTENCY_KEY, KEEPALIVE],
        headers=CREATE_HEADERS,
        errors=CREATE_ERRORS,
        others={"default": answer("An error of the server that runs the model.", ErrorBody)},
    ),
)
async def complete(request: Request, key: Caller, services: ServicesDep) -> Response:
    """A completion, or a stream of its chunks, by the model that the body names."""
    values = await read_json(request, key, services)
    name = _model_name(values)
    if draws(services.served.catalog.current, values):
        return await pictured_completion(request, key, services, values)
    model = find_chat_model(services.served.catalog.current, name, key.groups)
    if idempotency_key := idempotency_key_of(request):
        return await keyed_chat(request, services, key, model, values, idempotency_key)
    services.running.drain.check_open()
    if isinstance(model.source, Upstream):
        await check_upstream_chat(services.admission.moderator, key, model, values)
        respond = _respond_upstream_stream if values.get("stream") is True else _respond_upstream
        return CancelOnDisconnect(partial(respond, services, model.source, values, UsageContext(key, model.name)))
    chat = await asyncio.to_thread(parse_chat, values)
    chat, unseen = services.chats.completions.leave_out_unseen(chat, model.source)
    headers, keepalive = ignored_header([*ineffective_fields(values), *unseen]), wants_keepalive(request, key)
    return CancelOnDisconnect(partial(_respond, services, chat, model, model.source, key, headers, keepalive))


async def _respond(
    services: Services,
    chat: ChatRequest,
    model: ChatModel,
    spec: ChatSpec,
    key: Key,
    headers: dict[str, str],
    keepalive: bool,
    stack: AsyncExitStack,
) -> ASGIApp:
    """The response of a local model. It may begin once the engine has admitted the job. Raises ApiError before that."""
    head, keepalive_s = new_completion_head(model.name, spec), services.settings.keepalive_s
    answer = services.chats.completions.stream(chat, model, spec, head, key)
    running = services.admission.limiter.run_chat(key, model.name, ENDPOINT, answer)
    events = await stack.enter_async_context(aclosing(running))
    first = await anext(events)
    if isinstance(first, Admitted):
        headers = name_ignored(headers, ignored_options(first.unused_options, TEMPLATE_FIELDS))
    headers |= services.admission.limiter.headers(key)
    if chat.stream:
        stream = chunks(
            head, events, logprobs=chat.logprobs, include_usage=chat.include_usage, custom_tools=chat.custom_tools
        )
        return event_stream(chat_events(stream), keepalive_s, headers)

    async def body() -> bytes:
        answer = await collect(head, events, chat.n, logprobs=chat.logprobs, custom_tools=chat.custom_tools)
        return json.dumps(answer).encode()

    if keepalive:
        return KeepAliveJson(body, keepalive_s, headers)
    return Response(await body(), media_type="application/json", headers=headers)


async def _respond_upstream(
    services: Services, upstream: Upstream, values: Json, usage: UsageContext, stack: AsyncExitStack
) -> Response:
    answered = services.chats.upstream.answer(upstream, values, usage)
    running = services.admission.limiter.run_chat(usage.key, usage.model, ENDPOINT, answered)
    answer = await anext(await stack.enter_async_context(aclosing(running)))
    return _forwarded(answer, services.admission.limiter.headers(usage.key))


async def _respond_upstream_stream(
    services: Services, upstream: Upstream, values: Json, usage: UsageContext, stack: AsyncExitStack
) -> Response:
    """The upstream's stream once its first chunk is there, or the answer that came instead. Raises ApiError before."""
    streamed = services.chats.upstream.stream(upstream, values, usage)
    running = services.admission.limiter.run_chat(usage.key, usage.model, ENDPOINT, streamed)
    items = await stack.enter_async_context(aclosing(running))
    first = await anext(items, None)
    if first is None:
        message = f"The server behind model `{usage.model}` sent an empty stream."
        raise EngineFailure(message, code="upstream_failed")
    headers = services.admission.limiter.headers(usage.key)
    if isinstance(first, UpstreamResponse):
        return _forwarded(first, headers)
    return event_stream(chat_events(_prepend(first, items)), services.settings.keepalive_s, headers)


async def _prepend(first: Json, rest: AsyncGenerator[UpstreamResponse | Json, None]) -> AsyncIterator[Json]:
    yield first
    async for item in rest:
        if not isinstance(item, UpstreamResponse):
            yield item


def _forwarded(answer: UpstreamResponse, headers: Mapping[str, str]) -> Response:
    return JSONResponse(answer.body, status_code=answer.status, headers={**headers, **answer.headers})


def _model_name(values: dict[str, Any]) -> str | None:
    name = values.get("model")
    if name is not None and not isinstance(name, str):
        message = f"Invalid type for 'model': expected a string, but got {type(name).__name__} instead."
        raise BadRequest(message, param="model", code="invalid_type")
    return name
