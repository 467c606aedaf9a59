"""The image tool: one picture, drawn as the image routes draw theirs, with the same hold, capture and moderation."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pipelines.catalog.images import ImageModel
from server.accounts.calls import Write
from server.accounts.keys import Key
from server.accounts.responses import StoredItem
from server.errors import ApiError, BadRequest
from server.flows.images.create import Also
from server.flows.images.idempotency import start_part
from server.flows.images.request import ImageCall, check_options
from server.flows.references import Reference
from server.flows.responses.context import DRAWN
from server.flows.responses.plan import ImagePlan
from server.flows.responses.stream_events import Call
from server.schemas.response_object import Json, image_item
from server.schemas.response_tools import ImageTool
from server.services import Services
from server.state.active_calls import RunningCall
from server.state.active_responses import LiveResponse
from server.state.background_tasks import finish_even_if_cancelled
from server.state.image_result import ImageResult

ENDPOINT = "responses.images"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the model asked the image tool for."""

    prompt: str
    action: Literal["generate", "edit"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of a call: the item, whether it is charged (and recorded with that), and what the model is told."""

    item: Json
    charged: bool
    told: str


Record = Callable[[StoredItem], Write]


async def draw(
    services: Services,
    key: Key,
    plan: ImagePlan,
    live: LiveResponse,
    call: Call,
    instead: str | None,
    record: Record,
) -> Drawn:
    """Draw for one call, and tell how it goes. `instead` is the prompt where the model's call can't be read.

    `record` writes down a picture's item in the transaction that charges it, so that there is never one without the
    other.

    A refusal is told to the model and stands in the item. Raises ApiError for what is nobody's wish (a full queue, an
    empty budget, a dead engine), unless a picture of this response is paid for already: then that stands there too.
    """
    wish = None
    try:
        wish = read_wish(call.arguments, instead, can_edit=bool(plan.explicit or plan.newest))
        asked = image_call(plan, wish)
        item = partial(_item, call, wish, asked)

        def also(result: ImageResult) -> Write:
            return record(StoredItem("output", item(result), result.files[0]))

        result = await _run(services, key, plan, live, call, asked, also)
    except ApiError as error:
        if not isinstance(error, BadRequest) and not live.charged:
            raise
        return Drawn(_failed_item(call, wish, error), charged=False, told=f"error: {error.message}")
    live.output[call.index] = item(result)  # it is paid for, whatever happens now
    data = await asyncio.to_thread(services.storage.read, result.files[0])
    return Drawn({**item(result), "result": base64.b64encode(data).decode()}, charged=True, told=DRAWN)


def read_wish(arguments: str, instead: str | None, *, can_edit: bool) -> Wish:
    """Raises BadRequest for arguments that are none, where there is nothing instead of them."""
    value: Any = None
    with suppress(ValueError):
        value = json.loads(arguments)
    found = value if isinstance(value, dict) else {}
    prompt = found.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        if not instead:
            raise BadRequest("The model called the image tool without a prompt that can be read.")
        prompt = instead
    return Wish(prompt, "edit" if can_edit and found.get("action") != "generate" else "generate")


def image_call(plan: ImagePlan, wish: Wish) -> ImageCall:
    """The call as an image route would have it. The tool's own action wins over the model's."""
    tool = plan.tool
    action = wish.action if tool.action in {None, "auto"} else tool.action
    references: tuple[Reference, ...] = ()
    if tool.action != "generate" and plan.explicit:
        references = plan.explicit
    elif action == "edit":
        references = (plan.newest,) if plan.newest else ()
        if not references:
            raise BadRequest("There is no picture to edit: send one, or continue a response that has one.")
    return blank_call(tool, plan.model, wish.prompt, plan.results_base, references, plan.mask, plan.partial_images)


def blank_call(
    tool: ImageTool,
    model: ImageModel,
    prompt: str,
    results_base: str = "",
    references: tuple[Reference, ...] = (),
    mask: Reference | None = None,
    partial_images: int = 0,
) -> ImageCall:
    """The tool's options as an image call."""
    return ImageCall(
        endpoint=ENDPOINT,
        results_base=results_base,
        prompt=prompt,
        references=references,
        mask=mask if references else None,
        model=model.name,
        n=1,
        size=tool.size,
        quality=tool.quality if model.quality is not None or tool.quality != "auto" else None,
        response_format="url",
        output_format=tool.output_format or "png",
        output_compression=tool.output_compression,
        background=tool.background or "auto",
        moderation=tool.moderation or "auto",
        stream=partial_images > 0,
        partial_images=partial_images,
        seed=tool.seed,
        negative_prompt=None,
        steps=None,
        guidance=None,
        strength=None,
        loras={},
    )


async def _run(
    services: Services,
    key: Key,
    plan: ImagePlan,
    live: LiveResponse,
    call: Call,
    asked: ImageCall,
    also: Also,
) -> ImageResult:
    abilities = services.images.abilities(plan.model.checkpoint)
    check_options(asked, plan.model, services.settings.max_n, abilities)
    fields = {"item_id": call.item_id, "output_index": call.index}
    live.tell("response.image_generation_call.generating", **fields)
    running = start_part(services, key, asked, also)
    try:
        with running.listening():
            await _tell_previews(live, running, fields, asked)
            result = await running.result()
    except asyncio.CancelledError:
        paid_for = await finish_even_if_cancelled(_paid_for(services, key, running))
        if paid_for is None:
            raise
        result, live.cancelled = paid_for, True
    live.charged = True
    live.tell("response.image_generation_call.completed", **fields)
    return result


async def _paid_for(services: Services, key: Key, running: RunningCall) -> ImageResult | None:
    """The picture of a call that was cancelled while it was being captured: then it is the caller's."""
    with suppress(ApiError):
        await running.result()
    call_id = running.ticket.call.id
    record = await asyncio.to_thread(services.book.find, call_id, key.id)
    if record is None or record.state != "succeeded" or record.answer is None:
        return None
    return ImageResult.from_record(call_id, record.answer)


async def _tell_previews(live: LiveResponse, running: RunningCall, fields: Json, asked: ImageCall) -> None:
    shape = await running.admission()
    async for preview in running.previews():
        live.tell(
            "response.image_generation_call.partial_image",
            **fields,
            partial_image_index=preview.number,
            partial_image_b64=base64.b64encode(preview.image.data).decode(),
            size=shape.size,
            quality=shape.quality or "auto",
            background="opaque",
            output_format=asked.output_format,
        )


def _item(call: Call, wish: Wish, asked: ImageCall, result: ImageResult) -> Json:
    """The item of a picture, without its bytes."""
    answer = result.answer
    told = {
        "revised_prompt": wish.prompt,
        "size": answer.size,
        "quality": answer.quality or "auto",
        "background": answer.background,
        "output_format": answer.output_format,
        "action": "edit" if asked.references else "generate",
        "url": answer.data[0].url,
    }
    return image_item(call.item_id, "completed", told)


def _failed_item(call: Call, wish: Wish | None, error: ApiError) -> Json:
    told = {"revised_prompt": wish.prompt} if wish else {}
    return image_item(call.item_id, "failed", {**told, "error": error.body()["error"]})
