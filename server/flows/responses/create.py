"""From a request to a running response: the chain is read, the tools and pictures are looked up, all that can be known
to fail fails here."""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pipelines.catalog.chat import ChatModel, Upstream
from pipelines.catalog.sizes import SizeError, resolve_size
from pipelines.protocol.chat import ChatSampling, ChatSpec, JsonFormat
from pipelines.protocol.image_tool import IMAGE_TOOL
from pipelines.protocol.images import Picture
from server.accounts.keys import Key
from server.accounts.responses import StoredItem, StoredResponse
from server.errors import BadImageRequest, BadRequest, Overloaded, RateLimited
from server.flows.chat.models import find_chat_model
from server.flows.chat.moderation import chat_texts
from server.flows.chat.run import Tally
from server.flows.chat.tools import check_any, check_names, function_tool, json_format, known_tool
from server.flows.images.idempotency import Visit
from server.flows.images.request import check_options, find_model
from server.flows.moderation import Subject
from server.flows.rate_limits import place
from server.flows.references import Reference, load_references
from server.flows.responses.context import (
    IMAGE_FUNCTION,
    Shown,
    build_context,
    newest_picture,
    pictures_of,
)
from server.flows.responses.history import keep_inputs, read_chain, read_inputs, to_references
from server.flows.responses.image_tool import blank_call
from server.flows.responses.plan import ImagePlan, Plan
from server.flows.responses.retrieve import find_again
from server.flows.responses.tool_loop import run_response
from server.schemas.response_tools import AllowedTools, FunctionTool, HostedTool, ImageTool, NamedFunction
from server.schemas.responses import JsonObject, JsonSchema, ResponseBody, echo
from server.services import Services
from server.state.active_responses import LiveResponse, same_response

Choice = tuple[Literal["none", "auto", "required"], tuple[str, ...]]
MAX_PICTURES = 16


async def open_response(
    services: Services, key: Key, body: ResponseBody, results_base: str, visit: Visit
) -> LiveResponse:
    """The response to listen to: a new one, or the one that this Idempotency-Key began. Raises ApiError, and then
    nothing runs and nothing is kept."""
    if visit.idempotency_key is None and not visit.retry_count:
        return await _open(services, key, body, results_base, visit)
    async with services.live.opening(visit.idempotency_key or visit.fingerprint, key.id):
        known = await find_again(services, key, visit)
        return known or await _open(services, key, body, results_base, visit)


async def _open(services: Services, key: Key, body: ResponseBody, results_base: str, visit: Visit) -> LiveResponse:
    same = same_response(key.id, visit.fingerprint)
    if visit.retry_count:
        services.calls.told.settle(same)
    try:
        services.calls.check_open()
        with place(services, key):  # until it runs, and counts by itself
            return await _begin(services, key, body, results_base, visit)
    except (RateLimited, Overloaded):
        if visit.idempotency_key is None:
            services.calls.told.note(same)
        raise


async def _begin(services: Services, key: Key, body: ResponseBody, results_base: str, visit: Visit) -> LiveResponse:
    model = find_chat_model(services.catalog, body.model, key.groups)
    _check_pairs(body, model.source)
    response_id = f"resp_{uuid.uuid4().hex}"
    chain = await read_chain(services, key, body.previous_response_id)
    inputs = await read_inputs(services, key, body.input)
    plan = await _plan(services, key, model, body, response_id, chain, inputs, results_base)
    record = StoredResponse(
        id=response_id,
        key_id=key.id,
        previous_id=body.previous_response_id,
        state="queued" if body.background else "in_progress",
        background=body.background,
        echo=echo(body, model.name),
        created_at=int(time.time()),
        idempotency_key=visit.idempotency_key,
        fingerprint=visit.fingerprint,
        stored=body.store,
    )
    if body.store:
        plan = replace(plan, inputs=await asyncio.to_thread(keep_inputs, services, inputs))
    if body.background:
        await asyncio.to_thread(services.responses.begin, record, plan.inputs)
    retries = visit.retry_count is not None  # and what was drawn is not to be drawn and charged again
    recorded = body.store or visit.idempotency_key is not None or (retries and plan.image is not None)
    patience_s = services.settings.retry_grace_s if retries else 0.0
    live = LiveResponse(record, recorded=recorded, patience_s=patience_s)
    services.live.start(live, run_response(services, plan, live))
    return live


def find_local_model(services: Services, key: Key, body: ResponseBody) -> tuple[ChatModel, ChatSpec]:
    """The model, and its checkpoint here. Raises ApiError."""
    model = find_chat_model(services.catalog, body.model, key.groups)
    if not isinstance(model.source, ChatSpec):
        message = f"Tokens of model `{model.name}` can't be counted here: it runs on another server."
        raise BadRequest(message, param="model", code="unsupported_value")
    return model, model.source


def chat_tools(body: ResponseBody) -> tuple[Mapping[str, Any], ...]:
    """The tools as a chat has them. Raises BadRequest for a function whose schema is none."""
    return tuple(_chat_tool(tool, index) for index, tool in enumerate(body.tools))


async def _plan(
    services: Services,
    key: Key,
    model: ChatModel,
    body: ResponseBody,
    response_id: str,
    chain: Sequence[StoredItem],
    inputs: Sequence[StoredItem],
    results_base: str,
) -> Plan:
    tools, vision = _abilities(model.source)
    context = build_context([*chain, *inputs], body.instructions, tools=tools, vision=vision)
    new_pictures = await _new_pictures(services, body, inputs, vision=vision)
    tool = next((tool for tool in body.tools if isinstance(tool, ImageTool)), None)
    image = await _image_plan(services, key, model, tool, body, chain, inputs, results_base) if tool else None
    choice, allowed = _tool_choice(body)
    logprobs = "message.output_text.logprobs" in body.include
    return Plan(
        key=key,
        source=model.source,
        tally=Tally(key, model.name),
        subject=Subject(response_id, key.id, "responses", model.name, model.group),
        inputs=tuple(inputs) if body.store else (),
        messages=context.messages,
        pictures=await _decoded(services, context.pictures),
        texts=tuple(await asyncio.to_thread(_texts, body, inputs)),
        new_pictures=new_pictures,
        image=image,
        tools=chat_tools(body),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=body.parallel_tool_calls,
        max_tool_calls=body.max_tool_calls,
        format=_format(body),
        max_output_tokens=body.max_output_tokens,
        sampling=ChatSampling(body.temperature, body.top_p, body.presence_penalty, body.frequency_penalty),
        truncate=body.truncation == "auto",
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else 0,
        time_limit_s=services.settings.job_time_limit_s,
    )


def _texts(body: ResponseBody, inputs: Sequence[StoredItem]) -> list[str]:
    """What the model is shown that is new in this round."""
    new = build_context(inputs, body.instructions, tools=True, vision=False)
    return chat_texts(new.messages, [tool.model_dump() for tool in body.tools if isinstance(tool, FunctionTool)])


def _abilities(source: ChatSpec | Upstream) -> tuple[bool, bool]:
    """Whether the model calls tools, and whether it sees pictures. Another server says for itself whether its model
    takes tools; pictures stay here."""
    return (True, False) if isinstance(source, Upstream) else (source.tools, source.vision)


async def _new_pictures(
    services: Services, body: ResponseBody, inputs: Sequence[StoredItem], *, vision: bool
) -> tuple[Picture, ...]:
    """What came with this request, whoever will look at it: the model, the image tool, moderation."""
    new = [picture for item in inputs if item.body["type"] == "message" for picture in pictures_of(item)]
    if len(new) > MAX_PICTURES:
        message = f"Invalid 'input': too many pictures. Expected at most {MAX_PICTURES}, but got {len(new)}."
        raise BadRequest(message, param="input", code="array_above_max_length")
    if new and not vision and not any(isinstance(tool, ImageTool) for tool in body.tools):
        message = "This model does not see images: send the image_generation tool to edit them, or text alone."
        raise BadRequest(message, param="input", code="unsupported_parameter")
    return await _decoded(services, new)


async def _decoded(services: Services, shown: Sequence[Shown]) -> tuple[Picture, ...]:
    loaded = await load_references(services, await to_references(services, shown))
    return tuple(decoded.picture for decoded in loaded)


async def _image_plan(
    services: Services,
    key: Key,
    model: ChatModel,
    tool: ImageTool,
    body: ResponseBody,
    chain: Sequence[StoredItem],
    inputs: Sequence[StoredItem],
    results_base: str,
) -> ImagePlan:
    """Raises ApiError for what no prompt could mend: the model, the group, the size, an option."""
    image_model = find_model(services.catalog, tool.model or model.image_model, key.groups)
    where = f"tools[{body.tools.index(tool)}]"
    try:
        abilities = services.images.abilities(image_model.checkpoint)
        check_options(blank_call(tool, image_model, "a picture"), image_model, services.settings.max_n, abilities)
        resolve_size(image_model.sizes, tool.size, None)
    except SizeError as error:
        raise BadImageRequest(str(error), param=f"{where}.size") from error
    except BadRequest as error:
        error.param = f"{where}.{error.param}"
        raise
    last = inputs[-1:] if inputs and inputs[-1].body.get("role") == "user" else []
    explicit = [picture for item in last for picture in pictures_of(item)]
    newest = newest_picture([*chain, *inputs])
    mask = tool.input_image_mask
    return ImagePlan(
        tool=tool,
        model=image_model,
        results_base=results_base,
        explicit=await to_references(services, explicit),
        newest=next(iter(await to_references(services, [newest] if newest else [])), None),
        mask=Reference("tools.input_image_mask", mask.image_url) if mask else None,
        partial_images=(tool.partial_images or 0) if body.stream else 0,
    )


def _check_pairs(body: ResponseBody, source: ChatSpec | Upstream) -> None:
    if body.background and not body.store:
        message = "'background' needs 'store': true: a background response is read from where it is stored."
        raise BadRequest(message, param="background", code="invalid_parameter_combination")
    if body.stream_options is not None and not body.stream:
        message = "'stream_options' works with 'stream': true only: send it too, or leave both out."
        raise BadRequest(message, param="stream_options", code="invalid_parameter_combination")
    if body.truncation == "auto" and isinstance(source, Upstream):
        message = "'truncation': 'auto' is not supported with this model: it runs on another server. Leave it out."
        raise BadRequest(message, param="truncation", code="unsupported_parameter")
    if body.tools and not _abilities(source)[0]:
        raise BadRequest("'tools' is not supported with this model.", param="tools", code="unsupported_parameter")
    if not body.input and body.previous_response_id is None:
        message = "Invalid 'input': it must not be empty."
        raise BadRequest(message, param="input", code="string_below_min_length")


def _tool_choice(body: ResponseBody) -> Choice:
    names = [tool.name if isinstance(tool, FunctionTool) else IMAGE_FUNCTION for tool in body.tools]
    check_names(names, "tools[{}]")
    match body.tool_choice:
        case AllowedTools(mode=mode, tools=tools):
            return mode, tuple(known_tool(_name(tool), names) for tool in tools)
        case NamedFunction() | HostedTool():
            return "required", (known_tool(_name(body.tool_choice), names),)
        case "required":
            check_any(names)
    return body.tool_choice, ()


def _name(tool: NamedFunction | HostedTool) -> str:
    return tool.name if isinstance(tool, NamedFunction) else IMAGE_FUNCTION


def _chat_tool(tool: FunctionTool | ImageTool, index: int) -> dict[str, Any]:
    if isinstance(tool, ImageTool):
        return IMAGE_TOOL
    where = f"tools[{index}].parameters"
    return function_tool(tool.name, tool.description, tool.parameters, strict=tool.strict, param=where)


def _format(body: ResponseBody) -> JsonFormat | None:
    match body.text.format:
        case JsonObject():
            return JsonFormat(None)
        case JsonSchema() as named:
            where = {"field": "text.format", "param": "text.format.schema"}
            return json_format(named.name, named.schema_, strict=named.strict, **where)
    return None
