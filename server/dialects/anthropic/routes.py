"""Anthropic's protocol: POST /v1/messages and /v1/messages/count_tokens."""

import asyncio
import json
import uuid
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.accounts.keys import Key
from server.dialects.anthropic import examples
from server.dialects.anthropic.answers import (
    EVENTS,
    MessageAnswer,
    MessageWriter,
    TokenCount,
    collect,
)
from server.dialects.anthropic.errors import MessageError, error_body
from server.dialects.anthropic.request import FIELDS, count_to_chat, to_chat, without_unsupported
from server.dialects.anthropic.schema import CountBody, MessagesBody
from server.flows.admission import find_chat_model
from server.flows.chat.completion import CompletionWriter
from server.flows.chat.source import ChatCall
from server.flows.field_names import renamed_fields
from server.http.bodies import read_json
from server.http.chat_delivery import Protocol, answer_chat, write_each
from server.http.deps import Caller, ServicesDep
from server.http.errors import refuse_endpoints
from server.http.openapi import KEEPALIVE, RATE_HEADERS, RUN_ERRORS, errors_as, event_stream_of, json_body, returns
from server.schemas.extra_fields import unknown_keys
from server.schemas.validation import ignored_fields, validate
from server.services import Services

router = APIRouter(prefix="/v1/messages")
ENDPOINT = "messages"
Body = TypeVar("Body", bound=CountBody)
refuse_endpoints(router, "", {"batches": "Batches of messages are"}, "It serves /v1/messages.")


@router.post(
    "",
    response_description="The message, as JSON or as a stream of events.",
    responses={
        **returns(
            MessageAnswer,
            stream=event_stream_of(*EVENTS, examples=examples.MESSAGE_EVENTS),
            headers=["x-darkroom-ignored", *RATE_HEADERS],
        ),
        **errors_as(MessageError, RUN_ERRORS),
    },
    openapi_extra={"parameters": [KEEPALIVE], "requestBody": json_body(MessagesBody, examples.MESSAGES)},
)
async def create(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Create a message.

    Answers a conversation as Anthropic's Messages API does, by any chat model. A field that is null counts as absent.
    With `stream`, each event has the `type` of its data as its name.
    """
    body, ignored = await _read(MessagesBody, request, key, services)
    model = find_chat_model(services.served.catalog.current, body.model, key.groups)
    chat = await asyncio.to_thread(to_chat, body)
    call = ChatCall(key, model, ENDPOINT, chat, stops=tuple(body.stop_sequences), stream=body.stream)
    with renamed_fields(FIELDS):
        return await answer_chat(request, services, call, _protocol, ignored)


@router.post(
    "/count_tokens",
    response_description="The count.",
    responses={**returns(TokenCount), **errors_as(MessageError, RUN_ERRORS)},
    openapi_extra={"requestBody": json_body(CountBody, examples.COUNT)},
)
async def count_tokens(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Count the tokens of a message.

    Counts the tokens that the model would read for this conversation. Another server is asked for an answer of one
    token, which says so.
    """
    body, _ = await _read(CountBody, request, key, services)
    model = find_chat_model(services.served.catalog.current, body.model, key.groups)
    with renamed_fields(FIELDS):
        call = ChatCall(key, model, ENDPOINT, await asyncio.to_thread(count_to_chat, body))
        count: TokenCount = {"input_tokens": await services.chats.any_model.count_tokens(call)}
    return Response(json.dumps(count), media_type="application/json")


def _protocol(writer: CompletionWriter) -> Protocol:
    written = partial(write_each, MessageWriter(f"msg_{uuid.uuid4().hex}", writer.head.model).write)
    return Protocol(written, lambda events: collect(written(events)), error_body, FIELDS, names_events=True)


async def _read(model: type[Body], request: Request, key: Key, services: Services) -> tuple[Body, list[str]]:
    """Return the body that was sent, and the names of what of it has no effect. Raises ApiError."""
    values = await read_json(request, key, services)
    known, unread = await asyncio.to_thread(without_unsupported, values)
    body = await asyncio.to_thread(partial(validate, model, known, strict=True))
    return body, [
        *ignored_fields(MessagesBody, values),
        *unread,
        *unknown_keys(body, {**known, "messages": values["messages"]}),
    ]
