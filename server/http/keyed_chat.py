"""Chats with an Idempotency-Key: the answer to one request, which starts the chat, joins it or repeats its answer."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial

from fastapi import Request, Response
from starlette.types import ASGIApp

from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.upstream import Upstream
from server.accounts.keys import Key
from server.backends.upstream import Json, UpstreamResponse
from server.catalog.chat import ChatModel
from server.errors import ApiError, ReplayedError
from server.flows.chat.complete import new_completion_head
from server.flows.chat.completion import chunks, collect
from server.flows.chat.idempotency import Items
from server.flows.chat.moderation import check_upstream_chat
from server.flows.chat.parse import ineffective_fields, parse_chat
from server.flows.chat.request import ChatRequest
from server.flows.chat.run import UsageContext
from server.flows.fingerprint import fingerprint
from server.http.bodies import hold_body
from server.http.delivery import CancelOnDisconnect, KeepAliveJson
from server.http.deps import ignored_header, read_retry_info, wants_keepalive
from server.http.sse import chat_events, event_stream
from server.services import Services
from server.state.active_chats import ENDPOINT

Admit = Callable[[], None]


async def keyed_chat(
    request: Request, services: Services, key: Key, model: ChatModel, values: Json, idempotency_key: str
) -> Response:
    """The answer as the request wants it: a stream, or JSON. Raises ApiError."""
    items: Items
    if isinstance(model.source, Upstream):
        headers, streams = {}, values.get("stream") is True
        items = partial(_upstream_items, services, model, model.source, values, key)
    else:
        chat = await asyncio.to_thread(parse_chat, values)
        chat, unseen = services.chats.completions.leave_out_unseen(chat, model.source)
        headers, streams = ignored_header([*ineffective_fields(values), *unseen]), chat.stream
        items = partial(_local_items, services, chat, model, model.source, key)
    sent = {name: value for name, value in values.items() if value is not None}
    retry = read_retry_info(request, await asyncio.to_thread(fingerprint, sent, ()))

    async def respond(stack: AsyncExitStack) -> ASGIApp:
        running = await services.chats.keyed.find_or_start(key, retry, idempotency_key, items)
        hold_body(request, running)
        stack.enter_context(running.listening())
        replayed = {"Idempotency-Replayed": "true"} if running.replayed or running.done else {}
        await running.wait_admitted()
        known = headers | services.admission.limiter.headers(key) | replayed
        keepalive_s = services.settings.keepalive_s
        if streams:
            return event_stream(chat_events(running.items()), keepalive_s, known)

        async def body() -> bytes:
            (completion,) = [item async for item in running.items()]  # to its end, when it is recorded
            return json.dumps(completion).encode()

        if wants_keepalive(request, key):
            return KeepAliveJson(body, keepalive_s, known)
        return Response(await body(), media_type="application/json", headers=known)

    return CancelOnDisconnect(respond)


async def _local_items(
    services: Services, chat: ChatRequest, model: ChatModel, spec: ChatSpec, key: Key, admit: Admit
) -> AsyncGenerator[Json, None]:
    """What is sent of a chat on a local model."""
    head = new_completion_head(model.name, spec)
    answer = services.chats.completions.stream(chat, model, spec, head, key)
    running = services.admission.limiter.run_chat(key, model.name, ENDPOINT, answer)
    async with aclosing(running) as events:
        await anext(events)
        admit()
        if not chat.stream:
            yield await collect(head, events, chat.n, logprobs=chat.logprobs, custom_tools=chat.custom_tools)
            return
        async for chunk in chunks(
            head, events, logprobs=chat.logprobs, include_usage=chat.include_usage, custom_tools=chat.custom_tools
        ):
            yield chunk


async def _upstream_items(
    services: Services, model: ChatModel, upstream: Upstream, values: Json, key: Key, admit: Admit
) -> AsyncGenerator[Json, None]:
    """The same of a chat on another server. Its refusals are raised."""
    await check_upstream_chat(services.admission.moderator, key, model, values)
    streams = values.get("stream") is True
    send = services.chats.upstream.stream if streams else services.chats.upstream.answer
    sent = send(upstream, values, UsageContext(key, model.name))
    async with aclosing(services.admission.limiter.run_chat(key, model.name, ENDPOINT, sent)) as items:
        async for item in items:
            accepted = _accepted(item) if isinstance(item, UpstreamResponse) else item
            admit()
            yield accepted


def _accepted(answer: UpstreamResponse) -> Json:
    if answer.status == 200:
        return answer.body
    raise _refusal(answer)


def _refusal(answer: UpstreamResponse) -> ApiError:
    error = ReplayedError(answer.status, answer.body["error"])
    error.headers.update(answer.headers)
    return error
