"""A response from its first token to its last: the chat model's turns, with pictures drawn between them.

A picture is paid for when it is stored, and from then on the response is delivered: what fails later costs the closing
words, not the picture.
"""

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from pipelines.catalog.chat import Upstream
from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatJob,
    ChatSpec,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.accounts.calls import Write
from server.accounts.responses import StoredItem
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded
from server.flows.chat.request import MAX_SEED
from server.flows.chat.run import run_chat
from server.flows.moderation import check_pictures, check_texts, guarded
from server.flows.responses.context import IMAGE_FUNCTION, add_drawing, drawing_arguments, last_words
from server.flows.responses.image_tool import draw
from server.flows.responses.items import with_pictures
from server.flows.responses.plan import Plan, Turn
from server.flows.responses.stream_events import Call, Scribe
from server.flows.responses.upstream_turn import run_elsewhere
from server.schemas.response_object import Json, ResponseStatus, usage_object
from server.services import Services
from server.state.active_responses import LiveResponse
from server.state.background_tasks import finish_even_if_cancelled

log = structlog.stdlib.get_logger("darkroom.responses")

MAX_TURNS = 8  # of the model in one response; a model that draws in every one of them is stopped here
MAX_DRAWINGS = 10
PREVIEW = "response.image_generation_call.partial_image"
FIELDS = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}  # chat's -> ours
ERROR_CODES = {  # ours -> those that OpenAI's SDKs accept in a response's error
    "moderation_blocked": "invalid_prompt",
    "invalid_image_file": "invalid_image",
    "invalid_image_url": "invalid_image_url",
    "rate_limit_exceeded": "rate_limit_exceeded",
    "insufficient_quota": "rate_limit_exceeded",
}


@dataclass(slots=True)
class Progress:
    """What has been said and spent so far."""

    messages: list[Json]
    usage: ChatUsage = field(default_factory=lambda: ChatUsage(0, 0))
    drawn: int = 0


async def run_response(services: Services, plan: Plan, live: LiveResponse) -> None:
    """Run it, and record and tell how it ends."""
    live.tell_state("response.created")
    progress = Progress(list(plan.messages))
    status: ResponseStatus = "completed"
    failure: ApiError | None = None
    try:
        await _begin(services, plan, live)
        reason = await _converse(services, plan, live, progress)
        status = "incomplete" if reason == "length" else "completed"
    except asyncio.CancelledError:
        status = "cancelled"
        if live.charged and not live.record.background:
            status = "completed"  # its client left, and may come back for the picture
        elif live.stopping:
            message = "The server was stopped while it ran this response; what is not in its output was not charged."
            status, failure = _end_of_failure(live, Overloaded(message, 2))
    except ApiError as error:
        status, failure = _end_of_failure(live, error)
    except Exception:
        log.exception("response failed", response=live.record.id)
        unforeseen = EngineFailure(f"Something went wrong on the server (response {live.record.id}).")
        status, failure = _end_of_failure(live, unforeseen)
    await finish_even_if_cancelled(_finish(services, live, status, progress.usage, failure))


async def _begin(services: Services, plan: Plan, live: LiveResponse) -> None:
    if live.record.background:
        live.tell_state("response.queued")
        await asyncio.to_thread(services.responses.start, live.record.id)
    live.status = "in_progress"
    live.tell_state("response.in_progress")
    await check_texts(services, plan.subject, "input", plan.texts)
    await check_pictures(services, plan.subject, "input", plan.new_pictures)


async def _converse(services: Services, plan: Plan, live: LiveResponse, progress: Progress) -> FinishReason:
    """The model's turns, until it asks for nothing that the server can do. Returns why the last one ended."""
    for number in range(MAX_TURNS):
        left = min(MAX_DRAWINGS, plan.max_tool_calls or MAX_DRAWINGS) - progress.drawn
        turn = _next_turn(plan, progress, number, left)
        scribe = Scribe(live, hosted=plan.image is not None, may_draw=left, logprobs=plan.logprobs)
        reason = await _turn(services, plan, live, turn, scribe, progress)
        for index, item in scribe.done:
            await _record(services, plan, live, index, item)
        if scribe.text:
            progress.messages.append({"role": "assistant", "content": scribe.text})
        for call in scribe.drawings:
            await _draw(services, plan, live, call, progress)
        if scribe.functions or not scribe.drawings or (reason == "length" and not plan.must_draw):
            return reason
    return "stop"


def _next_turn(plan: Plan, progress: Progress, number: int, left: int) -> Turn:
    """What the caller demanded holds for the first; then the model is free, while it may still draw."""
    choice, allowed = plan.tool_choice, plan.allowed_tools
    if number > 0 and choice == "required":
        choice, allowed = ("none", ()) if plan.must_draw else ("auto", allowed)
    if left <= 0 or number == MAX_TURNS - 1:
        names = plan.allowed_tools or tuple(map(_name, plan.tools))
        allowed = tuple(name for name in names if name != IMAGE_FUNCTION)
        choice = "auto" if allowed and choice != "none" else "none"
    most, spent = plan.max_output_tokens, progress.usage.completion_tokens
    return Turn(tuple(progress.messages), choice, allowed, None if most is None else max(1, most - spent))


def _said(services: Services, plan: Plan, turn: Turn) -> AsyncGenerator[ChatEvent, None]:
    """What the model says in this turn, here or on its own server."""
    if isinstance(plan.source, Upstream):
        return run_elsewhere(services, plan, turn, plan.source)
    return run_chat(services, _job(plan, turn, plan.source), plan.tally)


def _job(plan: Plan, turn: Turn, spec: ChatSpec) -> ChatJob:
    return ChatJob(
        id=f"chat_{uuid.uuid4().hex}",
        checkpoint=spec,
        messages=turn.messages,
        seed=secrets.randbelow(MAX_SEED),
        time_limit_s=plan.time_limit_s,
        images=plan.pictures,
        tools=plan.tools,
        tool_choice=turn.tool_choice,
        allowed_tools=turn.allowed_tools,
        parallel_tool_calls=plan.parallel_tool_calls,
        format=plan.format,
        max_tokens=2**31 if turn.max_tokens is None else turn.max_tokens,
        sampling=plan.sampling,
        logprobs=plan.logprobs,
        top_logprobs=plan.top_logprobs,
        truncate=plan.truncate,
    )


async def _turn(
    services: Services, plan: Plan, live: LiveResponse, turn: Turn, scribe: Scribe, progress: Progress
) -> FinishReason:
    reason: FinishReason = "stop"
    try:
        async with aclosing(guarded(services, plan.subject, _said(services, plan, turn))) as events:
            async for event in events:
                match event:
                    case Admitted() if not live.admitted:
                        await _admit(services, plan, live)
                    case TextDelta() | ReasoningDelta() | ToolCallDelta():
                        scribe.write(event)
                    case ChoiceFinished():
                        reason = event.reason
                    case ChatFinished():
                        progress.usage = _sum(progress.usage, event.usage)
    except BadRequest as error:
        head = (error.param or "").partition("[")[0].partition(".")[0]
        error.param = FIELDS.get(head, error.param)
        raise
    if plan.must_draw and progress.drawn == 0 and not scribe.drawings:
        scribe.force_drawing()  # the model's call was cut off, or its engine can't be held to one
    scribe.close(reason)
    return reason


async def _admit(services: Services, plan: Plan, live: LiveResponse) -> None:
    """The request is sound. A background response is in the books already."""
    if live.recorded and not live.record.background:
        await asyncio.to_thread(services.responses.begin, live.record, plan.inputs)
    live.admit()


async def _draw(services: Services, plan: Plan, live: LiveResponse, call: Call, progress: Progress) -> None:
    if plan.image is None:
        raise EngineFailure("The model called a tool that was not offered.")
    instead = last_words(plan.messages) if plan.must_draw else None

    def record(item: StoredItem) -> Write:
        return services.responses.output(live.record, len(plan.inputs) + call.index, item)

    drawn = await draw(services, plan.key, plan.image, live, call, instead, record)
    progress.drawn += 1
    add_drawing(progress.messages, call.call_id, drawing_arguments(drawn.item), drawn.told)
    live.output[call.index] = drawn.item
    if not drawn.charged:
        await _record(services, plan, live, call.index, drawn.item)
    live.tell("response.output_item.done", output_index=call.index, item=drawn.item)
    if live.cancelled:
        raise asyncio.CancelledError


async def _record(services: Services, plan: Plan, live: LiveResponse, index: int, item: Json) -> None:
    if live.recorded:
        position = len(plan.inputs) + index
        await asyncio.to_thread(services.responses.add_output, live.record, position, StoredItem("output", item))


def _end_of_failure(live: LiveResponse, error: ApiError) -> tuple[ResponseStatus, ApiError | None]:
    """A response with a picture that is paid for is delivered as it is."""
    if not live.charged:
        return "failed", error
    log.warning("the response ends early, after its picture", response=live.record.id, error=error.message)
    return "completed", None


async def _finish(
    services: Services, live: LiveResponse, status: ResponseStatus, usage: ChatUsage, failure: ApiError | None
) -> None:
    live.output = [_settled(item, status) for item in live.output]
    ended: dict[str, Any] = {
        "completed_at": int(time.time()) if status == "completed" else None,
        "usage": usage_object(usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens),
        "error": _error(failure) if failure else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
    }
    recorded = live.recorded and (live.admitted or live.record.background)
    if failure is not None and failure.asks_for_retry and live.heard and not live.record.lasting:
        services.calls.told.note(live.same)
    try:
        if recorded:  # before it is told: who hears of the end may go on from here at once
            finish = partial(services.responses.finish, heard=live.heard)
            await asyncio.to_thread(finish, live.record.id, status, ended)
    except Exception:  # who listens must hear of the end all the same; the next start will settle the record
        log.exception("the end of a response could not be recorded", response=live.record.id)
    live.end(status, ended, failure)
    if recorded and (live.record.lasting or not live.heard):
        await asyncio.to_thread(_keep_events, services, live)


def _settled(item: Json, status: ResponseStatus) -> Json:
    """An item that was never finished is not in progress any more."""
    if item["status"] != "in_progress":
        return item
    return {**item, "status": "failed" if item["type"] == "image_generation_call" else "incomplete"}


def _keep_events(services: Services, live: LiveResponse) -> None:
    """Record the events without previews and pictures' bytes: the items have those. Blocks."""
    events = [with_pictures(event, {}) for event in live.events if event["type"] != PREVIEW]
    services.responses.keep_events(live.record.id, events)


def _error(failure: ApiError) -> Json:
    return {"code": ERROR_CODES.get(failure.code or "", "server_error"), "message": failure.message}


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _sum(one: ChatUsage, other: ChatUsage) -> ChatUsage:
    return replace(
        one,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
