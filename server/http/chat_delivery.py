"""A chat as an answer, whatever makes its events and whatever protocol writes them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from pipelines.protocol.chat import Admitted
from server.accounts.keys import Key
from server.errors import ApiError
from server.flows.chat.any_model import rename_field
from server.flows.chat.picture import CallAdmitted, PictureDelta, PicturedEvent
from server.http.delivery import CancelOnDisconnect, KeepAliveJson, prepend
from server.http.deps import name_ignored, truncated_header, wants_keepalive
from server.http.sse import SEPARATOR, event, event_stream
from server.services import Services

Json = dict[str, Any]
Events = AsyncGenerator[PicturedEvent, None]


def openai_error(error: ApiError) -> Json:
    """Errors have bodies of their own: a repeated one, a refusal of the policy."""
    return error.body()


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a protocol writes a chat. `fields` has a chat completion's fields and what they are called there."""

    to_events: Callable[[AsyncIterator[PicturedEvent]], AsyncIterator[Json]]
    to_body: Callable[[AsyncIterator[PicturedEvent]], Awaitable[Json | list[Json]]]
    to_error: Callable[[ApiError], Json] = openai_error
    fields: Mapping[str, str] = field(default_factory=dict)
    named: bool = False  # an event's `type` is its name, too
    ends_with_done: bool = False
    comment: str | None = "keep-alive"  # while nothing happens


def chat_response(
    request: Request,
    key: Key,
    services: Services,
    events: Callable[[], Events],
    protocol: Protocol,
    headers: dict[str, str],
    *,
    stream: bool,
) -> Response:
    """The answer, as JSON or as a stream. It is cancelled when the client disconnects."""
    keepalive = wants_keepalive(request, key) and not stream
    return CancelOnDisconnect(partial(_respond, services, key, events, protocol, headers, stream, keepalive))


async def _respond(
    services: Services,
    key: Key,
    make_events: Callable[[], Events],
    protocol: Protocol,
    headers: dict[str, str],
    stream: bool,
    keepalive: bool,
    stack: AsyncExitStack,
) -> ASGIApp:
    """It may begin once the chat is admitted. Raises ApiError before that."""
    events = await stack.enter_async_context(aclosing(make_events()))
    try:
        first = await anext(events)
    except ApiError as error:
        rename_field(error, protocol.fields)
        raise
    headers |= services.admission.limiter.headers(key)
    if isinstance(first, Admitted):
        unused = dict.fromkeys(protocol.fields.get(name, name) for name in first.unused_options)
        headers = name_ignored(headers, unused)
    if isinstance(first, CallAdmitted):
        headers |= {"x-darkroom-job": first.job} | ({"Idempotency-Replayed": "true"} if first.replayed else {})
    all_events, keepalive_s = prepend(first, events), services.settings.keepalive_s
    if stream:
        sent = _sse_events(protocol.to_events(all_events), protocol)
        return event_stream(sent, keepalive_s, headers, comment=protocol.comment)

    cuts: list[str] = []

    async def body() -> bytes:
        return json.dumps(await protocol.to_body(_noting(all_events, cuts))).encode()

    if keepalive:
        return KeepAliveJson(body, keepalive_s, headers)
    try:
        content = await body()
        headers |= truncated_header("; ".join(dict.fromkeys(cuts)))
        return Response(content, media_type="application/json", headers=headers)
    except ApiError as error:
        rename_field(error, protocol.fields)
        raise


async def _noting(events: AsyncIterator[PicturedEvent], cuts: list[str]) -> AsyncIterator[PicturedEvent]:
    """The events, from which what was cut off the pictures' prompts is noted."""
    async for each in events:
        if isinstance(each, PictureDelta) and each.truncated:
            cuts.append(each.truncated)
        yield each


async def _sse_events(events: AsyncIterator[Json], protocol: Protocol) -> AsyncIterator[ServerSentEvent]:
    """An error after the first event is the last one."""
    try:
        async for item in events:
            yield event(item, item["type"] if protocol.named else None)
    except ApiError as error:
        rename_field(error, protocol.fields)
        body = protocol.to_error(error)
        yield event(body, body["type"] if protocol.named else None)
        return
    if protocol.ends_with_done:
        yield ServerSentEvent("[DONE]", sep=SEPARATOR)
