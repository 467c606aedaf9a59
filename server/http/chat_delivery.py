"""A chat as an answer, from any source of its events and by any protocol."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp

from pipelines.protocol.chat import Admitted
from server.accounts.fingerprints import fingerprint
from server.accounts.keys import Key
from server.backends.upstream import UpstreamResponse
from server.errors import ApiError, ReplayedError
from server.flows.chat.completion import CompletionWriter
from server.flows.chat.events import AnswerEvent, CallAdmitted, ImageDelta, RawItem
from server.flows.chat.parse import meant_fields
from server.flows.chat.source import Chat, ChatCall
from server.flows.field_names import field_name, rename_field, renamed_fields
from server.http.bodies import hold_body
from server.http.delivery import CancelOnDisconnect, KeepAliveJson, first_within
from server.http.deps import (
    idempotency_key_of,
    ignored_header,
    name_ignored,
    read_retry_info,
    truncated_header,
    wants_keepalive,
)
from server.http.sse import SEPARATOR, event, event_stream
from server.schemas.extra_fields import ignored_options
from server.services import Services
from server.state.active_chats import Sent

Events = AsyncGenerator[AnswerEvent, None]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a protocol writes a chat. `fields` has a chat completion's fields and their names there; `options` those of
    the chat template's options, where several may come from one field."""

    to_events: Callable[[AsyncIterator[AnswerEvent]], AsyncIterator[Sent]]
    to_body: Callable[[AsyncIterator[AnswerEvent]], Awaitable[Sent | Sequence[Sent]]]
    to_error: Callable[[ApiError], Sent] = methodcaller("body")  # which some errors choose themselves
    fields: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] | None = None
    names_events: bool = False  # by their `type`, as server-sent events may have a name
    ends_with_done: bool = False
    comment: str | None = "keep-alive"  # while nothing happens

    def name_all(self, fields: Iterable[str]) -> list[str]:
        """Return the protocol's names of a chat completion's fields, each once."""
        return list(dict.fromkeys(field_name(name, self.fields) for name in fields))

    def option_fields(self, unused: tuple[str, ...]) -> list[str]:
        """Return the protocol's fields whose options the chat template does not know."""
        return self.name_all(unused) if self.options is None else ignored_options(unused, self.options)


Write = Callable[[CompletionWriter], Protocol]
Written = TypeVar("Written", bound=Sent)


async def write_each(
    write: Callable[[AnswerEvent], Iterable[Written]], events: AsyncIterator[AnswerEvent]
) -> AsyncIterator[Written]:
    """Yield what a protocol writes for each event. Raises the errors of `events`."""
    async for each in events:
        for written in write(each):
            yield written


async def answer_chat(
    request: Request, services: Services, call: ChatCall, write: Write, ignored: Iterable[str] = ()
) -> Response:
    """Return the answer to a chat. A body of the caller's own may have an Idempotency-Key. Raises ApiError."""
    chat = await services.chats.any_model.prepare(call)
    protocol, events = write(chat.writer), chat.events
    if call.verbatim and idempotency_key_of(request):
        meant = await asyncio.to_thread(meant_fields, call.values)
        retry = read_retry_info(request, await asyncio.to_thread(fingerprint, call.values, meant, ()))
        items = partial(_items, chat, protocol, call.stream)
        events = partial(services.chats.keyed.events, call.key, retry, items, partial(hold_body, request))
    headers = ignored_header([*ignored, *protocol.name_all(chat.ignored)])
    return chat_response(request, call.key, services, Delivery(events, protocol, headers, call.stream))


async def _items(chat: Chat, protocol: Protocol, stream: bool) -> AsyncGenerator[Any, None]:
    """Yield the parts of a chat's answer: the chunks of a stream, or the whole answer. An upstream's refusal is
    raised."""
    async with aclosing(chat.events()) as events:
        accepted = _raise_refusals(events)
        if not stream:
            yield await protocol.to_body(accepted)
            return
        async for item in protocol.to_events(accepted):
            yield item


async def _raise_refusals(events: AsyncIterator[AnswerEvent]) -> AsyncIterator[AnswerEvent]:
    """Yield the events, an upstream's whole answer as an item. Raises ReplayedError for its refusal."""
    async for each in events:
        if not isinstance(each, UpstreamResponse):
            yield each
        elif each.status == 200:
            yield RawItem(each.body)
        else:
            error = ReplayedError(each.status, each.body["error"])
            error.headers.update(each.headers)
            raise error


@dataclass(frozen=True, slots=True)
class Delivery:
    """What an answer is made of: its events once they are asked for, the form that they take, and its headers."""

    events: Callable[[], Events]
    protocol: Protocol
    headers: dict[str, str]
    stream: bool


def chat_response(request: Request, key: Key, services: Services, answer: Delivery) -> Response:
    """Return the answer, as JSON or as a stream. It is cancelled when the client disconnects."""
    keepalive = wants_keepalive(request, key) and not answer.stream
    return CancelOnDisconnect(partial(_respond, services, key, answer, keepalive))


async def _respond(services: Services, key: Key, answer: Delivery, keepalive: bool, stack: AsyncExitStack) -> ASGIApp:
    """Return the response, which may begin once the chat is admitted. Raises ApiError before that. A stream, and an
    answer with keepalive, begin after `keepalive_s` in any case: a later refusal is the stream's error."""
    protocol, keepalive_s = answer.protocol, services.settings.keepalive_s
    events = await stack.enter_async_context(aclosing(answer.events()))
    with renamed_fields(protocol.fields):
        limit_s = keepalive_s if answer.stream or keepalive else None
        first, all_events = await first_within(events, limit_s, stack)
    headers = answer.headers | services.admission.limiter.headers(key)
    if isinstance(first, UpstreamResponse):
        return JSONResponse(first.body, first.status, {**headers, **first.headers})
    if isinstance(first, Admitted):
        unused = protocol.option_fields(first.unused_options)
        headers = name_ignored(headers, [*unused, *protocol.name_all(first.ignored)])
    if isinstance(first, CallAdmitted):
        headers |= {"x-darkroom-job": first.job} if first.job else {}
        headers |= {"Idempotency-Replayed": "true"} if first.replayed else {}
    if first is None:
        all_events = _raise_refusals(all_events)
    if answer.stream:
        sent = _sse_events(protocol.to_events(all_events), protocol)
        return event_stream(sent, keepalive_s, headers, comment=protocol.comment)

    cuts: list[str] = []

    async def body() -> bytes:
        return json.dumps(await protocol.to_body(_recording_cuts(all_events, cuts))).encode()

    if keepalive:
        return KeepAliveJson(body, keepalive_s, headers)
    with renamed_fields(protocol.fields):
        content = await body()
    headers |= truncated_header("; ".join(dict.fromkeys(cuts)))
    return Response(content, media_type="application/json", headers=headers)


async def _recording_cuts(events: AsyncIterator[AnswerEvent], cuts: list[str]) -> AsyncIterator[AnswerEvent]:
    """Yield the events, and note the parts that were cut off the prompts of their images."""
    async for each in events:
        if isinstance(each, ImageDelta) and each.truncated:
            cuts.append(each.truncated)
        yield each


async def _sse_events(events: AsyncIterator[Sent], protocol: Protocol) -> AsyncIterator[ServerSentEvent]:
    """Yield the events as they are sent. An error after the first is the last one."""
    try:
        async for item in events:
            yield event(item, item["type"] if protocol.names_events else None)
    except ApiError as error:
        rename_field(error, protocol.fields)
        body = protocol.to_error(error)
        yield event(body, body["type"] if protocol.names_events else None)
        return
    if protocol.ends_with_done:
        yield ServerSentEvent("[DONE]", sep=SEPARATOR)
