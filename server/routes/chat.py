"""POST /v1/chat/completions."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import BadRequest, ErrorBody
from server.flows.admission import find_chat_model
from server.flows.chat.completion import CompletionWriter
from server.flows.chat.source import ChatCall
from server.http import examples
from server.http.bodies import read_json
from server.http.chat_delivery import Protocol, answer_chat
from server.http.chat_images import image_completion, returns_images
from server.http.deps import Caller, ServicesDep
from server.http.openapi import (
    CREATE_ERRORS,
    CREATE_HEADERS,
    IDEMPOTENCY_KEY,
    KEEPALIVE,
    answer,
    event_stream_of,
    json_body,
    returns,
)
from server.schemas.chat import ChatBody
from server.schemas.chat_completion import ChatCompletion, ChatCompletionChunk
from server.state.active_chats import ENDPOINT

CHUNKS = event_stream_of(ChatCompletionChunk, ErrorBody, examples=examples.CHAT_EVENTS)
router = APIRouter(prefix="/v1/chat/completions")
TEMPLATE_FIELDS = {
    "reasoning_effort": "reasoning_effort",
    "enable_thinking": "reasoning_effort",
    "verbosity": "verbosity",
    "documents": "documents",
}


@router.post(
    "",
    response_description="The completion, as JSON or as a stream of chunks.",
    responses={
        **returns(ChatCompletion, *CREATE_ERRORS, stream=CHUNKS, headers=CREATE_HEADERS),
        "default": answer("An error of the server that runs the model.", ErrorBody),
    },
    openapi_extra={"parameters": [IDEMPOTENCY_KEY, KEEPALIVE], "requestBody": json_body(ChatBody, examples.CHAT)},
)
async def complete(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Create a chat completion.

    Continues a conversation. A field that is null counts as absent. With `stream`, the events have no names; the last
    one is `data: [DONE]`, or the error that ended the stream. A model that another server runs gets the body as it is,
    and that server's answer is passed on with all its fields.
    """
    values = await read_json(request, key, services)
    name = _model_name(values)
    if returns_images(services.served.catalog.current, values):
        return await image_completion(request, key, services, values)
    model = find_chat_model(services.served.catalog.current, name, key.groups)
    call = ChatCall(key, model, ENDPOINT, values, stream=values.get("stream") is True, verbatim=True)
    return await answer_chat(request, services, call, _protocol)


def _protocol(writer: CompletionWriter) -> Protocol:
    return Protocol(writer.chunks, writer.collect, options=TEMPLATE_FIELDS, ends_with_done=True)


def _model_name(values: dict[str, Any]) -> str | None:
    name = values.get("model")
    if name is not None and not isinstance(name, str):
        message = f"Invalid type for 'model': expected a string, but got {type(name).__name__} instead."
        raise BadRequest(message, param="model", code="invalid_type")
    return name
