"""Chats with images in their answers: of /v1/chat/completions, and of protocols whose bodies become a chat's."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from server.accounts.fingerprints import fingerprint
from server.accounts.keys import Key
from server.catalog.chat import ChatModel
from server.catalog.images import Catalog, ImageModel
from server.catalog.sizes import SizeError, half_size
from server.errors import BadRequest
from server.flows.admission import find_chat_model, find_image_model
from server.flows.chat.completion import CompletionHead, CompletionWriter
from server.flows.chat.parse import custom_names, read_chat_body
from server.flows.chat_images.conversation import read_conversation
from server.flows.chat_images.image_call import (
    OPTIONS,
    model_of_tier,
    request_fingerprint,
    to_image_request,
    to_response,
)
from server.flows.field_names import renamed_fields
from server.flows.images.prompt_notes import foreign_syntax
from server.flows.responses.image_tool import fit_tool
from server.http.chat_delivery import Delivery, Protocol, Write, chat_response
from server.http.delivery import attach
from server.http.deps import ignored_header, public_base, read_retry_info, wants_keepalive
from server.schemas.chat import ChatBody
from server.schemas.response_tools import ImageTool
from server.services import Services

Json = dict[str, Any]
ENDPOINT = "chat.images"
OWN_FIELDS = frozenset({"model", "messages", "n", "stream", "stream_options", "modalities", "image_config"})
CHAT_FIELDS = frozenset(  # that a chat model reads beside them
    {"tools", "tool_choice", "temperature", "top_p", "max_tokens", "max_completion_tokens"}
    | {"presence_penalty", "frequency_penalty"}
)
HALF = "512"  # as Google's clients ask for half of 1K
SIZE_FIELD = "image_config.image_size"
TOOL_OPTIONS = ImageTool.model_fields.keys() & OPTIONS - {"n"}
FIELDS = {"prompt": "messages", "image": "messages", "input": "messages"}  # an image call's -> a chat's


def returns_images(catalog: Catalog, values: Mapping[str, Any]) -> bool:
    """Return whether the answer has images: the model draws and does not chat, or an image is asked for."""
    name, modalities = values.get("model"), values.get("modalities")
    asked = isinstance(modalities, list) and "image" in modalities
    known = isinstance(name, str) and catalog.chat.find(name) is None and catalog.find(name) is not None
    return asked or known


@dataclass(frozen=True, slots=True)
class ImageCall:
    """A chat that draws, in the words of its protocol. `sent` is what its caller has asked for."""

    sent: Json
    body: ChatBody
    options: Json  # of the image routes, not validated yet
    endpoint: str  # as the ledger names it
    ignored: tuple[str, ...]
    fields: Mapping[str, str]  # an image call's -> those of the protocol
    write: Write

    @property
    def tier(self) -> str | None:
        """Return the resolution of the model that draws."""
        size = self.body.image_config.image_size if self.body.image_config else None
        return "1K" if size == HALF else size


async def image_completion(request: Request, key: Key, services: Services, values: Json) -> Response:
    """Answer a chat completion that draws, at once or as a stream of chunks. Raises ApiError."""
    body, left_out = await asyncio.to_thread(read_chat_body, values)
    options = {name: value for name, value in values.items() if name in OPTIONS}
    used = OWN_FIELDS | OPTIONS | (CHAT_FIELDS if services.served.catalog.current.chat.find(body.model) else set())
    fields = FIELDS | ({"size": "image_config.aspect_ratio"} if _size(body) else {})
    ignored = (*sorted(values.keys() - used), *left_out)
    call = ImageCall(values, body, options, ENDPOINT, ignored, fields, partial(_protocol, body, fields))
    return await image_response(request, key, services, call)


async def image_response(request: Request, key: Key, services: Services, call: ImageCall) -> Response:
    """Answer a chat that draws. A chat model that calls tools writes the prompt of the image; else the last message is
    drawn as it is. Raises ApiError."""
    catalog, name = services.served.catalog.current, call.body.model
    with renamed_fields(call.fields):
        if catalog.chat.find(name) is None:
            drawn_by = find_image_model(catalog, name, key.groups, call.options.get("size"))
            return await _by_image_model(request, key, services, call, drawn_by)
        chat = find_chat_model(catalog, name, key.groups)
        model = find_image_model(catalog, chat.image_model, key.groups)
        if chat.tools is not False:
            return await _by_chat_model(request, key, services, call, chat, model)
        return await _by_image_model(request, key, services, call, model)


async def _by_image_model(
    request: Request, key: Key, services: Services, call: ImageCall, model: ImageModel
) -> Response:
    model = model_of_tier(services.served.catalog.current, model, call.tier, SIZE_FIELD)
    read = await asyncio.to_thread(read_conversation, call.body.messages, model.checkpoint.max_references)
    drawing = await services.chats.image.drop_unavailable_images(key, read)
    options = call.options | _size_of(call.body, model)
    image = to_image_request(options, drawing, model, call.endpoint, public_base(request, services))
    retry = read_retry_info(request, await asyncio.to_thread(request_fingerprint, call.sent, image))
    begins = wants_keepalive(request, key) and not call.body.stream
    draw = services.chats.image.draw
    events = partial(draw, key, image, retry, partial(attach, request), body_begins=begins)
    protocol = call.write(CompletionWriter(CompletionHead.of_call(model.name, key.tier(image.service_tier)), image.n))
    prompts = {"prompt": image.prompt, "negative_prompt": image.sampling.negative_prompt}
    headers = ignored_header([*call.ignored, *drawing.unread, *foreign_syntax(prompts)])
    return chat_response(request, key, services, Delivery(events, protocol, headers, call.body.stream))


async def _by_chat_model(
    request: Request, key: Key, services: Services, call: ImageCall, model: ChatModel, drawn_by: ImageModel
) -> Response:
    drawn_by = model_of_tier(services.served.catalog.current, drawn_by, call.tier, SIZE_FIELD)
    options = {name: call.options[name] for name in TOOL_OPTIONS if call.options.get(name) is not None}
    tool, left_out = fit_tool(
        ImageTool(type="image_generation", **{**options, "model": drawn_by.name, **_size_of(call.body, drawn_by)}),
        drawn_by,
    )
    response = await asyncio.to_thread(to_response, call.body, model.name, tool)
    meant = response.model_dump(mode="json", exclude_defaults=True)
    retry = read_retry_info(request, await asyncio.to_thread(fingerprint, call.sent, meant, ()))
    respond, base = services.chats.image.respond, public_base(request, services)
    events = partial(respond, key, response, base, retry, partial(attach, request))
    protocol = call.write(CompletionWriter(CompletionHead.of_call(model.name, key.tier(call.body.service_tier))))
    ignored = [*call.ignored, *left_out, *sorted(call.options.keys() - TOOL_OPTIONS - {"n", "service_tier"})]
    headers = ignored_header(ignored + (["n"] if call.body.n > 1 else []))
    return chat_response(request, key, services, Delivery(events, protocol, headers, call.body.stream))


def _size(body: ChatBody) -> Json:
    ratio = body.image_config.aspect_ratio if body.image_config else None
    return {"size": ratio} if ratio else {}


def _size_of(body: ChatBody, model: ImageModel) -> Json:
    """Return the size that is asked for. Raises BadRequest for a ratio that the model does not draw."""
    if body.image_config is None or body.image_config.image_size != HALF:
        return _size(body)
    try:
        return {"size": str(half_size(model.sizes, body.image_config.aspect_ratio))}
    except SizeError as error:
        raise BadRequest(str(error), param="size") from error


def _protocol(body: ChatBody, fields: Mapping[str, str], writer: CompletionWriter) -> Protocol:
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    writer = replace(writer, include_usage=include_usage, custom_tools=custom_names(body))
    return Protocol(writer.chunks, writer.collect, fields=fields, ends_with_done=True)
