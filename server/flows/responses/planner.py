"""From the body of a request to a ResponsePlan: the chain is read, images are decoded, the image tool is checked.

Every error that can be known before the chat model runs is raised here.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.protocol.chat import ChatSampling, ChatSpec, CountJob, JsonFormat
from pipelines.protocol.images import RawImage
from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.catalog.chat import ChatModel
from server.catalog.sizes import SizeError, resolve_size
from server.errors import BadImageRequest, BadRequest
from server.flows.admission import find_image_model
from server.flows.chat.moderation import chat_texts
from server.flows.chat.request import MAX_IMAGES, ChatRequest
from server.flows.chat.tools import json_format
from server.flows.images.create import ImageCreator
from server.flows.moderation import ModerationContext
from server.flows.references import Reference, ReferenceLoader
from server.flows.responses.context import (
    Context,
    ImageRef,
    build_context,
    images_of,
    newest_images,
    with_newest_images,
    with_sources,
)
from server.flows.responses.history import History, to_reference
from server.flows.responses.image_tool import request_from_tool
from server.flows.responses.item_images import ItemImages, RequestItems
from server.flows.responses.items import is_sent_drawing, parts_of
from server.flows.responses.plan import ImagePlan, ResponsePlan
from server.flows.responses.tools import ResponseTools, read_tools
from server.schemas.extra_fields import SAMPLED, template_options
from server.schemas.response_object import Json
from server.schemas.response_tools import ImageTool
from server.schemas.responses import JsonObject, JsonSchema, ResponseBody
from server.state.served import ServedCatalog


class Planner:
    """Builds plans. One for the whole server."""

    def __init__(
        self, catalog: ServedCatalog, history: History, references: ReferenceLoader, creator: ImageCreator
    ) -> None:
        self._catalog = catalog
        self._history = history
        self._references = references
        self._creator = creator

    async def plan(
        self,
        key: Key,
        model: ChatModel,
        body: ResponseBody,
        response_id: str,
        items: RequestItems,
        results_base: str,
    ) -> ResponsePlan:
        """Check a request, and return the plan of its response. Raises ApiError."""
        _check_images(body, items, model)
        images = ItemImages(self._references, key, items.required)
        await images.pixels(_unmoderated_images(items))
        if body.store:
            await images.check([image for item in items.inputs if is_sent_drawing(item) for image in images_of(item)])
        original, items = items, await self._drop_unreadable(images, model, body, items)
        context = self.context(model, body, items.items)
        image = await self._image_plan(images, key, model, body, items, results_base)
        tools = read_tools(body.tools, body.tool_choice)
        return ResponsePlan(
            key=key,
            chat=model,
            request=_request(body, tools, *await _shown_messages(images, model, context)),
            moderation=ModerationContext(response_id, key.id, "responses", model.name, model.group),
            inputs=tuple(items.inputs) if body.store else (),
            new_texts=tuple(await asyncio.to_thread(_new_texts, body, [*items.past.unchecked, *items.inputs])),
            new_images=await images.pixels(_unmoderated_images(items)),
            image=image,
            tools=tools,
            max_tool_calls=body.max_tool_calls,
            encrypted="reasoning.encrypted_content" in body.include,
            left_out=tuple(images.lost_paths(body, original)),
        )

    def context(self, model: ChatModel, body: ResponseBody, items: Sequence[StoredItem]) -> Context:
        """Return the context that the model reads, with the newest of too many images."""
        tools = model.tools is not False  # another server checks them itself, and whether its model sees
        context = build_context(items, body.instructions, tools=tools, vision=model.vision is not False)
        return with_newest_images(context, MAX_IMAGES)

    async def count_job(
        self, key: Key, model: ChatModel, spec: ChatSpec, body: ResponseBody, items: RequestItems
    ) -> CountJob:
        """Return the job that counts the tokens of what the model would read. Raises ApiError."""
        images = ItemImages(self._references, key, items.required)
        context = self.context(model, body, (await self._drop_unreadable(images, model, body, items)).items)
        tools = read_tools(body.tools, body.tool_choice).functions
        shown = await _shown_messages(images, model, context)
        return CountJob(f"count_{uuid.uuid4().hex}", spec, *shown, tools, owner=key.id)

    async def _drop_unreadable(
        self, images: ItemImages, model: ChatModel, body: ResponseBody, items: RequestItems
    ) -> RequestItems:
        """Read the images that the model is shown, and return the items without those that can't be read any more.
        Raises ApiError."""
        while True:
            readable, lost = images.without_lost(items), len(images.lost)
            await _shown_messages(images, model, self.context(model, body, readable.items))
            if len(images.lost) == lost:
                return readable  # else older images take the places of the lost ones

    async def _image_plan(
        self,
        images: ItemImages,
        key: Key,
        model: ChatModel,
        body: ResponseBody,
        items: RequestItems,
        results_base: str,
    ) -> ImagePlan | None:
        """Plan the image tool; None without it. Raises ApiError for errors that no prompt could mend: model, group,
        size, an option."""
        index, tool = next(((i, t) for i, t in enumerate(body.tools) if isinstance(t, ImageTool)), (0, None))
        if tool is None:
            return None
        image_model = find_image_model(self._catalog.current, tool.model or model.image_model, key.groups, tool.size)
        try:
            self._creator.check(request_from_tool(tool, image_model, "an image"), image_model)
            resolve_size(image_model.sizes, tool.size, None)
        except SizeError as error:
            raise BadImageRequest(str(error), param=f"tools[{index}].size") from error
        except BadRequest as error:
            error.param = f"tools[{index}].{error.param}"
            raise
        last = [item for item in items.inputs[-1:] if item.body.get("role") == "user"]
        newest = await self._newest_image(images, items)
        mask = tool.input_image_mask
        return ImagePlan(
            tool=tool,
            model=image_model,
            results_base=results_base,
            explicit=tuple(to_reference(image) for item in last for image in images_of(item)),
            newest=to_reference(newest) if newest else None,
            mask=Reference("tools.input_image_mask", mask.image_url) if mask else None,
            partial_images=(tool.partial_images or 0) if body.stream else 0,
            service_tier=body.service_tier,
        )

    async def _newest_image(self, images: ItemImages, items: RequestItems) -> ImageRef | None:
        """Return the last image that was drawn or sent and is still there."""
        for image in newest_images(items.items):
            if await self._history.is_there(image):
                return image
            images.lost.add(image)
        return None


def _check_images(body: ResponseBody, items: RequestItems, model: ChatModel) -> None:
    """Refuse images that no model of this request can use. Raises BadRequest."""
    if (count := len(items.last)) > MAX_IMAGES:
        message = f"Invalid 'input': too many images. Expected at most {MAX_IMAGES}, but got {count}."
        raise BadRequest(message, param="input", code="array_above_max_length")
    has_images = any(parts_of(item) and images_of(item) for item in items.inputs)
    if has_images and model.vision is False and not any(isinstance(tool, ImageTool) for tool in body.tools):
        message = "This model does not see images: send the image_generation tool to edit them, or text alone."
        raise BadRequest(message, param="input", code="unsupported_parameter")


def _unmoderated_images(items: RequestItems) -> list[ImageRef]:
    """Return the images that moderation has not seen yet, also those that only the image tool or moderation reads."""
    new = [image for item in items.inputs if parts_of(item) for image in images_of(item)]
    before = [image for item in items.past.unchecked for image in images_of(item)]
    return [*before[-MAX_IMAGES:], *new[-MAX_IMAGES:]]


async def _shown_messages(
    images: ItemImages, model: ChatModel, context: Context
) -> tuple[tuple[Json, ...], tuple[RawImage, ...]]:
    """Return the messages, and the pixels of their images. Another server gets the images' files, inside the messages.
    Raises ApiError."""
    if model.spec is not None:
        return context.messages, await images.pixels(context.images)
    return with_sources(context.messages, await images.uris(context.images)), ()


def check_combinations(body: ResponseBody, model: ChatModel) -> None:
    """Refuse fields that exclude each other or that this kind of model can't do. Raises BadRequest."""
    if body.background and not body.store:
        message = "'background' needs 'store': true: a background response is read from where it is stored."
        raise BadRequest(message, param="background", code="invalid_parameter_combination")
    if body.stream_options is not None and not body.stream:
        message = "'stream_options' works with 'stream': true only: send it too, or leave both out."
        raise BadRequest(message, param="stream_options", code="invalid_parameter_combination")
    if body.tools and model.tools is False:
        raise BadRequest("'tools' is not supported with this model.", param="tools", code="unsupported_parameter")
    if body.conversation and body.previous_response_id:
        message = "'conversation' and 'previous_response_id' say two things of what came before: send one of them."
        raise BadRequest(message, param="conversation", code="invalid_parameter_combination")
    if body.conversation and not body.store:
        message = "'conversation' needs 'store': true: what the response says is stored in the conversation."
        raise BadRequest(message, param="conversation", code="invalid_parameter_combination")
    if not body.input and body.previous_response_id is None and body.conversation is None:
        raise BadRequest("Invalid 'input': it must not be empty.", param="input", code="string_below_min_length")


def _new_texts(body: ResponseBody, inputs: Sequence[StoredItem]) -> list[str]:
    """Return the texts of this round, for moderation."""
    new = build_context(inputs, body.instructions, tools=True, vision=False)
    tools = [tool.model_dump() for tool in body.tools if not isinstance(tool, ImageTool)]
    return chat_texts(new.messages, [*tools, _template_options(body)])


def _request(
    body: ResponseBody, tools: ResponseTools, messages: tuple[Json, ...], images: tuple[RawImage, ...]
) -> ChatRequest:
    """Return the first request to the model."""
    logprobs = "message.output_text.logprobs" in body.include
    return ChatRequest(
        messages=messages,
        decoded_images=images,
        tools=tools.functions,
        tool_choice=tools.mode,
        allowed_tools=tools.allowed,
        strict_tools=tools.strict,
        input_grammars=tools.grammars,
        parallel_tool_calls=body.parallel_tool_calls,
        format=_format(body),
        max_tokens=body.max_output_tokens,
        sampling=ChatSampling(**body.model_dump(include=set(SAMPLED)), unset=SAMPLED - body.model_fields_set),
        truncate=body.truncation == "auto",
        service_tier=body.service_tier,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else 0,
        template_options=_template_options(body),
        thinking_budget=body.thinking_token_budget,
    )


def _template_options(body: ResponseBody) -> Mapping[str, Any]:
    effort = body.reasoning.effort if body.reasoning else None
    return template_options(effort, body.text.verbosity, body.chat_template_kwargs)


def _format(body: ResponseBody) -> JsonFormat | None:
    match body.text.format:
        case JsonObject():
            return JsonFormat(None)
        case JsonSchema() as named:
            where = {"field": "text.format", "param": "text.format.schema"}
            return json_format(named.name, named.schema_, strict=named.strict, **where)
    return None
