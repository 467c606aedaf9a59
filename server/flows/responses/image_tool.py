"""The image tool: one image, drawn as the image routes draw theirs, with the same hold, capture and moderation."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.accounts.store import Write
from server.backends.event_objects import json_object
from server.backends.storage import Storage
from server.catalog.images import ImageModel
from server.errors import ApiError, BadRequest
from server.flows.images.create import ImageCreator
from server.flows.images.idempotency import ImageCalls
from server.flows.images.request import ImageRequest
from server.flows.images.results import read_image, truncated_of
from server.flows.references import Reference
from server.flows.responses.context import IMAGE_TOOL_SUCCESS
from server.flows.responses.plan import ImagePlan
from server.flows.responses.stream_events import ToolCall
from server.schemas.images import SamplingOptions
from server.schemas.response_answers import ImageCall
from server.schemas.response_tools import ImageTool
from server.state.active_calls import ActiveCall, ImageResult
from server.state.active_responses import ActiveResponse
from server.state.tasks import run_to_completion

ENDPOINT = "responses.images"


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """The arguments with which the model called the tool."""

    prompt: str
    action: Literal["generate", "edit"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a tool call.

    A charged item was recorded in the transaction that charged it. The model reads `message`. `interrupted`: the
    response was cancelled while the image was captured, so the image is delivered and the response ends.
    """

    item: ImageCall
    charged: bool
    message: str
    interrupted: bool = False


RecordItem = Callable[[StoredItem], Write]


class ImageToolRunner:
    """Runs calls of the image tool. One for the whole server."""

    def __init__(self, calls: ImageCalls, creator: ImageCreator, storage: Storage) -> None:
        self._calls = calls
        self._creator = creator
        self._storage = storage

    async def run(
        self,
        key: Key,
        plan: ImagePlan,
        response: ActiveResponse,
        call: ToolCall,
        fallback_prompt: str | None,
        record_item: RecordItem,
    ) -> ToolResult:
        """Draw for one call and emit its events. `fallback_prompt` is used if the model's arguments can't be read.

        A refusal goes into the item and to the model. Raises ApiError for errors that no other arguments could mend (a
        full queue, an exhausted budget, a dead engine), unless an image of this response is charged already: then that
        goes into the item too.
        """
        arguments = None
        try:
            arguments = parse_tool_arguments(
                call.arguments, fallback_prompt, can_edit=bool(plan.explicit or plan.newest)
            )
            request = build_image_request(plan, arguments)
            self._creator.check(request, plan.model)
            to_item = partial(_item, call, arguments, request)

            def extra_writes(result: ImageResult) -> Write:
                return record_item(StoredItem("output", to_item(result), result.files[0]))

            place = response.place(call.item_id, call.index)
            response.emit({"type": "response.image_generation_call.generating", **place})
            running = self._calls.start_nested(key, request, extra_writes)
            result, interrupted = await self._follow(running, response, call, request)
        except ApiError as error:
            if not isinstance(error, BadRequest) and not response.charged:
                raise
            return ToolResult(_failed_item(call, arguments, error), charged=False, message=f"error: {error.message}")
        response.mark_charged(call.index, to_item(result))
        place = response.place(call.item_id, call.index)
        response.emit({"type": "response.image_generation_call.completed", **place})
        data = await self._storage.in_thread(read_image, self._storage, result, result.files[0])
        item: ImageCall = {**to_item(result), "result": base64.b64encode(data).decode()}
        return ToolResult(item, charged=True, message=IMAGE_TOOL_SUCCESS, interrupted=interrupted)

    async def _follow(
        self, running: ActiveCall, response: ActiveResponse, call: ToolCall, request: ImageRequest
    ) -> tuple[ImageResult, bool]:
        """Return the result, and whether the response was cancelled after the image had been captured."""
        try:
            with running.listening():
                await _emit_previews(response, running, call, request)
                return await running.result(), False
        except asyncio.CancelledError:
            await run_to_completion(running.wait_done())
            if running.captured is None:
                raise
            return running.captured, True


def fit_tool(tool: ImageTool, model: ImageModel) -> tuple[ImageTool, list[str]]:
    """Remove the options that this model does not know, for a caller who did not choose it; return the tool and their
    names. `input_fidelity` acts where references are redrawn."""
    left_out = ["input_fidelity"] if tool.input_fidelity and model.checkpoint.conditioning != "img2img" else []
    if tool.quality not in {None, "auto"} and model.quality is None:
        left_out.append("quality")
    return tool.model_copy(update=dict.fromkeys(left_out)), left_out


def parse_tool_arguments(arguments: str, fallback_prompt: str | None, *, can_edit: bool) -> ToolArguments:
    """Read the arguments of a tool call. Raises BadRequest if there is neither a prompt nor a fallback."""
    fields = json_object(arguments) or {}
    prompt = fields.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        if not fallback_prompt:
            raise BadRequest("The model called the image tool without a prompt that can be read.")
        prompt = fallback_prompt
    return ToolArguments(prompt, "edit" if can_edit and fields.get("action") != "generate" else "generate")


def build_image_request(plan: ImagePlan, arguments: ToolArguments) -> ImageRequest:
    """Build the image request of a tool call. An action in the tool's definition wins over the model's."""
    tool = plan.tool
    action = arguments.action if tool.action in {None, "auto"} else tool.action
    references: tuple[Reference, ...] = ()
    if tool.action != "generate" and plan.explicit:
        references = plan.explicit
    elif action == "edit":
        references = (plan.newest,) if plan.newest else ()
        if not references:
            raise BadRequest("There is no image to edit: send one, or continue a response that has one.")
    return replace(
        request_from_tool(tool, plan.model, arguments.prompt),
        results_base=plan.results_base,
        references=references,
        mask=plan.mask if references else None,
        stream=plan.partial_images > 0,
        partial_images=plan.partial_images,
        service_tier=plan.service_tier,
    )


def request_from_tool(tool: ImageTool, model: ImageModel, prompt: str) -> ImageRequest:
    """Return the tool's options as an image call, which nobody follows yet."""
    return ImageRequest(
        endpoint=ENDPOINT,
        results_base="",
        prompt=prompt,
        model=model.name,
        size=tool.size,
        quality=tool.quality if model.quality is not None or tool.quality != "auto" else None,
        output_format=tool.output_format or "png",
        output_compression=tool.output_compression,
        background=tool.background or "auto",
        moderation=tool.moderation or "auto",
        seed=tool.seed,
        input_fidelity=tool.input_fidelity,
        enhance=False,  # a chat model has written the prompt
        sampling=SamplingOptions(long_prompt=tool.long_prompt),
    )


async def _emit_previews(response: ActiveResponse, running: ActiveCall, call: ToolCall, request: ImageRequest) -> None:
    shape = await running.admission()
    async for preview in running.follow():
        response.emit(
            {
                "type": "response.image_generation_call.partial_image",
                **response.place(call.item_id, call.index),
                "partial_image_index": preview.number,
                "partial_image_b64": base64.b64encode(preview.image.data).decode(),
                "size": f"{preview.image.width_px}x{preview.image.height_px}",
                "quality": shape.quality or "auto",
                "background": shape.background,
                "output_format": request.output_format,
            }
        )


def _item(call: ToolCall, arguments: ToolArguments, request: ImageRequest, result: ImageResult) -> ImageCall:
    """Return the output item of an image, without its bytes."""
    answer = result.answer
    item: ImageCall = {
        "id": call.item_id,
        "type": "image_generation_call",
        "status": "completed",
        "result": None,
        "revised_prompt": arguments.prompt,
        "size": answer.size,
        "quality": answer.quality or "auto",
        "background": answer.background,
        "output_format": answer.output_format,
        "action": "edit" if request.references else "generate",
        "url": answer.data[0].url or "",
    }
    if cut := truncated_of(request, result):
        item["truncated"] = cut
    return item


def _failed_item(call: ToolCall, arguments: ToolArguments | None, error: ApiError) -> ImageCall:
    item: ImageCall = {"id": call.item_id, "type": "image_generation_call", "status": "failed", "result": None}
    if arguments:
        item["revised_prompt"] = arguments.prompt
    item["error"] = error.body()["error"]
    return item
