"""Google's protocol: /v1beta/models, generateContent, streamGenerateContent and countTokens."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from server.accounts.keys import Key
from server.catalog.images import Catalog
from server.dialects.gemini import examples
from server.dialects.gemini.answers import (
    CandidateWriter,
    GenerateAnswer,
    TotalTokens,
    collect,
)
from server.dialects.gemini.errors import GeminiError, error_answer
from server.dialects.gemini.history import drawn_images, readable_contents
from server.dialects.gemini.models import GeminiCard, GeminiCards, gemini_card, gemini_cards
from server.dialects.gemini.request import FIELDS, asks_for_image, ignored_fields, to_chat, without_unsupported
from server.dialects.gemini.schema import CountTokensBody, GenerateBody
from server.errors import BadRequest
from server.flows.admission import find_chat_model
from server.flows.chat.completion import CompletionWriter
from server.flows.chat.events import AnswerEvent
from server.flows.chat.source import ChatCall
from server.flows.field_names import renamed_fields
from server.http.bodies import read_json
from server.http.chat_delivery import Protocol, Write, answer_chat, write_each
from server.http.chat_images import ImageCall, image_response
from server.http.deps import Caller, ServicesDep
from server.http.errors import refuse, refuse_endpoints
from server.http.model_cards import find_card, list_cards
from server.http.openapi import (
    IDEMPOTENCY_KEY,
    KEEPALIVE,
    RATE_HEADERS,
    RUN_ERRORS,
    errors_as,
    event_stream_of,
    json_body,
    parameter,
    returns,
    schema_of,
)
from server.schemas.chat import ChatBody
from server.schemas.extra_fields import unknown_keys
from server.schemas.validation import validate
from server.services import Services

router = APIRouter(prefix="/v1beta/models")
ENDPOINT = "gemini.images"
CHAT_ENDPOINT = "gemini.chat"
ModelName = Annotated[str, Path(description="The name of a model, or an alias.")]
ALT = parameter("query", "alt", "`sse` for server-sent events.", enum=["sse", "json"], default="json")
BODY = json_body(GenerateBody, examples.GENERATE)
IMAGE_OPTIONS = ("n", "seed")  # of a chat, that an image call takes too
HEADERS = ("x-darkroom-ignored", "x-darkroom-truncated", *RATE_HEADERS)
ERRORS = errors_as(GeminiError, (*RUN_ERRORS, 409, 422))
UNSUPPORTED = {
    "files": "The files endpoint is",
    "cachedContents": "Cached contents are",
    "fileSearchStores": "File search stores are",
    "tunedModels": "Tuned models are",
    "corpora": "Corpora are",
    "batches": "Batches are",
    "operations": "Operations are",
    "interactions": "Interactions are",
    "agents": "Agents are",
    "webhooks": "Webhooks are",
}
# What Google's models do elsewhere. Below /v1/models only these, as a model's name may have a colon of its own.
UNSUPPORTED_ACTIONS = (
    "asyncBatchEmbedContent",
    "batchEmbedContents",
    "batchGenerateContent",
    "embedContent",
    "generateAnswer",
    "predict",
    "predictLongRunning",
)


@router.get(
    "",
    response_description="The models.",
    responses=errors_as(GeminiError, (401, 500, 503)),
)
async def list_models(request: Request, _: Caller, services: ServicesDep) -> GeminiCards:
    """List models for Google's clients.

    Lists every model of the catalog as Google's API does.
    """
    return gemini_cards(await list_cards(services), request.query_params)


@router.post(
    "/{model:path}:generateContent",
    response_description="The candidates.",
    responses={**returns(GenerateAnswer, headers=HEADERS), **ERRORS},
    openapi_extra={"parameters": [IDEMPOTENCY_KEY, KEEPALIVE], "requestBody": BODY},
)
async def generate(model: ModelName, request: Request, key: Caller, services: ServicesDep) -> Response:
    """Generate content.

    Answers a conversation as Google's API does: with images of an image model, or with a chat model's text.
    `responseModalities` says which; without them, an image model draws and a chat model writes. An answer that the
    policy refuses has no candidates, or one without content.
    """
    return await _generate(model, request, key, services, stream=False)


@router.post(
    "/{model:path}:streamGenerateContent",
    response_description="The parts.",
    responses={
        **returns(
            {"type": "array", "items": schema_of(GenerateAnswer, "serialization")},
            stream=event_stream_of(GenerateAnswer, GeminiError, examples=examples.GENERATE_EVENTS),
            headers=HEADERS,
        ),
        **ERRORS,
    },
    openapi_extra={"parameters": [ALT, IDEMPOTENCY_KEY, KEEPALIVE], "requestBody": BODY},
)
async def generate_stream(
    model: ModelName, request: Request, key: Caller, services: ServicesDep, alt: str = "json"
) -> Response:
    """Generate content as a stream.

    The same in parts, as they come. Without `alt=sse` in the query, the parts are one JSON array.
    """
    return await _generate(model, request, key, services, stream=alt == "sse", as_array=True)


@router.post(
    "/{model:path}:countTokens",
    response_description="The count.",
    responses=errors_as(GeminiError, RUN_ERRORS),
    openapi_extra={"requestBody": json_body(CountTokensBody, examples.COUNT_TOKENS)},
)
async def count_tokens(model: ModelName, request: Request, key: Caller, services: ServicesDep) -> TotalTokens:
    """Count the tokens of contents.

    Counts the tokens that a chat model would read. For an image model, those of the chat model that is the default.
    """
    values = await read_json(request, key, services)
    contents, _ = await asyncio.to_thread(readable_contents, values.get("contents"))
    inner = values.get("generateContentRequest")
    whole = {"generateContentRequest": without_unsupported(inner)[0]} if isinstance(inner, dict) else {}
    known = {**values, "contents": contents, **whole}
    sent = await asyncio.to_thread(partial(validate, CountTokensBody, known, strict=True))
    body = sent.generate_content_request or GenerateBody(contents=sent.contents)
    if not body.contents:
        raise BadRequest("Missing required parameter: 'contents'.", param="contents", code="missing_required_parameter")
    chat = find_chat_model(
        services.served.catalog.current, _chat_name(services.served.catalog.current, model), key.groups
    )
    with renamed_fields(FIELDS):
        call = ChatCall(key, chat, CHAT_ENDPOINT, await asyncio.to_thread(to_chat, body, chat.name))
        tokens = await services.chats.any_model.count_tokens(call)
    return {"totalTokens": tokens}


@router.get(
    "/{model:path}",
    response_description="The model.",
    responses=errors_as(GeminiError, (401, 404, 500, 503)),
)
async def show_model(model: ModelName, _: Caller, services: ServicesDep) -> GeminiCard:
    """Get a model for Google's clients.

    Returns one model, by its name or an alias, as Google's API does.
    """
    return gemini_card(await find_card(services, model))


# Google's newer clients leave out the "beta" where no version is set.
stable = APIRouter(prefix="/v1/models")
for _action, _route in (
    ("generateContent", generate),
    ("streamGenerateContent", generate_stream),
    ("countTokens", count_tokens),
):
    stable.add_api_route(f"/{{model:path}}:{_action}", _route, methods=["POST"], include_in_schema=False)

refusals = APIRouter()
refuse_endpoints(refusals, "/v1beta", UNSUPPORTED, "It serves /v1beta/models.")
for _action in UNSUPPORTED_ACTIONS:
    _message = (
        f"'{_action}' is not supported by this server. Models here take generateContent, streamGenerateContent and "
        "countTokens."
    )
    refuse(
        refusals, [f"/{version}/models/{{model:path}}:{_action}" for version in ("v1", "v1beta")], _message, ["POST"]
    )


async def _generate(
    name: str, request: Request, key: Key, services: Services, *, stream: bool, as_array: bool = False
) -> Response:
    """Answer by the model, or by a chat model where only text is wanted, whatever model is named. Raises ApiError."""
    sent = await read_json(request, key, services)
    values, unread = await asyncio.to_thread(without_unsupported, sent)
    body = await asyncio.to_thread(partial(validate, GenerateBody, values, strict=True))
    unread += unknown_keys(body, {**values, "contents": sent["contents"]})
    catalog, asked = services.served.catalog.current, asks_for_image(body)
    draws = catalog.chat.find(name) is None and catalog.find(name) is not None
    write = partial(_protocol, as_array and not stream)
    with renamed_fields(FIELDS):
        if asked or (asked is None and draws):
            ignored = [*ignored_fields(sent), *unread]
            asked_for = {**sent, "model": name, "stream": stream}  # the path has these two
            drawing = await asyncio.to_thread(_image_call, asked_for, body, ignored, write)
            return await image_response(request, key, services, drawing)
        model = find_chat_model(catalog, _chat_name(catalog, name), key.groups)
        chat, stops = await asyncio.to_thread(to_chat, body, model.name), tuple(body.generation_config.stop_sequences)
        call = ChatCall(key, model, CHAT_ENDPOINT, chat, stops=stops, stream=stream)
        return await answer_chat(request, services, call, write, [*ignored_fields(sent), *unread, *drawn_images(body)])


def _image_call(asked_for: dict[str, Any], body: GenerateBody, unread: Sequence[str], write: Write) -> ImageCall:
    """Return the body as a chat that draws. Raises BadRequest."""
    chat = to_chat(body, asked_for["model"], draws=True)
    wanted = body.generation_config.image_config
    config = wanted.model_dump(exclude_none=True) if wanted else None
    image = validate(ChatBody, {**chat, "image_config": config, "stream": asked_for["stream"]}, strict=True)
    options = {field: chat[field] for field in IMAGE_OPTIONS if field in chat}
    return ImageCall(asked_for, image, options, ENDPOINT, tuple(unread), FIELDS, write)


def _protocol(as_array: bool, writer: CompletionWriter) -> Protocol:
    written = partial(write_each, CandidateWriter(uuid.uuid4().hex, writer.head.model).write)

    async def listed(events: AsyncIterator[AnswerEvent]) -> list[GenerateAnswer]:
        return [chunk async for chunk in written(events)]

    to_body = listed if as_array else lambda events: collect(written(events))
    # Google's SDK takes a comment for a broken event
    return Protocol(written, to_body, lambda error: error_answer(error)[1], FIELDS, comment=None)


def _chat_name(catalog: Catalog, name: str) -> str | None:
    """Return the name of the chat model that answers; None, which is the default, for an image model's."""
    return None if catalog.chat.find(name) is None and catalog.find(name) is not None else name
