"""A response from its first token to its last: turns of the chat model, with images drawn between them.

An image is charged when it is stored, and from then on the response is delivered: a later failure costs the closing
text, not the image.
"""

import asyncio
import time
from contextlib import aclosing
from dataclasses import astuple, dataclass, field, replace
from operator import add

import structlog

from pipelines.protocol.chat import (
    Admitted,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.accounts.response_items import StoredItem
from server.accounts.responses import ResponseEnd, ResponseStore
from server.accounts.store import Write
from server.errors import ApiError, BadRequest, DatabaseBusy, EngineFailure, Overloaded
from server.flows.chat.chats import Chats
from server.flows.chat.request import ChatRequest
from server.flows.chat.run import UsageContext
from server.flows.field_names import rename_field
from server.flows.moderation import Moderator
from server.flows.responses.context import add_image_call, image_call_arguments, last_user_text
from server.flows.responses.image_tool import ImageToolRunner
from server.flows.responses.items import with_images
from server.flows.responses.plan import ResponsePlan
from server.flows.responses.stream_events import EventWriter, ToolCall
from server.flows.responses.tools import IMAGE_FUNCTION
from server.schemas.response_answers import OutputItem
from server.schemas.response_object import Json, ResponseError, ResponseOutcome, ResponseStatus, usage_object
from server.state.active_responses import ActiveResponse, Phase
from server.state.expected_retries import ExpectedRetries
from server.state.tasks import CancelReason, run_to_completion

log = structlog.stdlib.get_logger("darkroom.responses")

MAX_TURNS = 8  # of the model in one response, for a model that calls the image tool in every turn
MAX_IMAGE_CALLS = 10
PREVIEW = "response.image_generation_call.partial_image"
FIELDS = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}  # chat's -> ours
ERROR_CODES = {  # ours -> those that OpenAI's clients know in a response's error
    "context_length_exceeded": "context_length_exceeded",
    "moderation_blocked": "invalid_prompt",
    "invalid_image_file": "invalid_image",
    "invalid_image_url": "invalid_image_url",
    "rate_limit_exceeded": "rate_limit_exceeded",
    "insufficient_quota": "insufficient_quota",
}


@dataclass(slots=True)
class LoopState:
    """The conversation and the tokens so far."""

    messages: list[Json]
    usage: ChatUsage = field(default_factory=lambda: ChatUsage(0, 0))
    image_calls: int = 0


class ToolLoop:
    """Runs responses. One for the whole server."""

    def __init__(
        self,
        chats: Chats,
        moderator: Moderator,
        image_tool: ImageToolRunner,
        store: ResponseStore,
        expected_retries: ExpectedRetries,
    ) -> None:
        self._chats = chats
        self._moderator = moderator
        self._image_tool = image_tool
        self._store = store
        self._expected_retries = expected_retries

    async def run(self, plan: ResponsePlan, response: ActiveResponse) -> None:
        """Run the response, then record and emit its end."""
        response.emit_snapshot("response.created")
        state = LoopState([dict(message) for message in plan.request.messages])
        status: ResponseStatus = "completed"
        failure: ApiError | None = None
        try:
            await self._begin(plan, response)
            reason = await self._run_turns(plan, response, state)
            status = "incomplete" if reason == "length" else "completed"
        except asyncio.CancelledError:
            status = "cancelled"
            if response.charged and not response.record.background:
                status = "completed"  # its client left, and may come back for the image
            elif response.cancel_reason is CancelReason.SHUTDOWN:
                message = (
                    "The server was stopped while it ran this response; what is not in its output was not charged."
                )
                status, failure = _end_of_failure(response, Overloaded(message, 2))
        except ApiError as error:
            status, failure = _end_of_failure(response, error)
        except Exception:
            log.exception("response failed", response=response.call.id)
            unexpected = EngineFailure(f"Something went wrong on the server (response {response.call.id}).")
            status, failure = _end_of_failure(response, unexpected)
        await run_to_completion(self._finish(response, status, state.usage, failure))

    async def _begin(self, plan: ResponsePlan, response: ActiveResponse) -> None:
        if response.phase is Phase.QUEUED:
            response.emit_snapshot("response.queued")
            await self._store.retry_in_writer(self._store.start, response.call.id)
            response.start()
        response.emit_snapshot("response.in_progress")
        await self._moderator.check_texts(plan.moderation, "input", plan.new_texts)
        await self._moderator.check_images(plan.moderation, "input", plan.new_images)

    async def _run_turns(self, plan: ResponsePlan, response: ActiveResponse, state: LoopState) -> FinishReason:
        """Run the model's turns until it calls nothing that the server can run, and return why the last turn ended."""
        for number in range(MAX_TURNS):
            calls_left = min(MAX_IMAGE_CALLS, plan.max_tool_calls or MAX_IMAGE_CALLS) - state.image_calls
            turn = next_turn(plan, state, number, calls_left)
            writer = EventWriter(
                response,
                hosted=plan.image is not None,
                max_image_calls=calls_left,
                logprobs=plan.request.logprobs,
                called=plan.tools.called,
                encrypted=plan.encrypted,
            )
            reason = await self._run_turn(plan, response, turn, writer, state)
            for index, item in writer.completed_items:
                await self._record_item(plan, response, index, item)
            if writer.text:
                state.messages.append({"role": "assistant", "content": writer.text})
            for call in writer.image_calls:
                await self._run_image_call(plan, response, call, state)
            is_cut = reason == "length" and not plan.image_required
            if writer.function_calls or not writer.image_calls or is_cut:
                return reason
        return "stop"

    async def _run_turn(
        self, plan: ResponsePlan, response: ActiveResponse, turn: ChatRequest, writer: EventWriter, state: LoopState
    ) -> FinishReason:
        reason: FinishReason = "stop"
        try:
            answer = self._chats.source(plan.chat).run(turn, UsageContext(plan.key, plan.chat.name))
            moderated = self._moderator.moderate_stream(plan.moderation, answer)
            async with aclosing(moderated) as events:
                async for event in events:
                    match event:
                        case Admitted() if not response.admitted:
                            response.unused_options = event.unused_options
                            response.unread += tuple(plan.tools.unread_path(path) for path in event.ignored)
                            await self._admit(plan, response)
                        case TextDelta() | ReasoningDelta() | ToolCallDelta():
                            writer.write(event)
                        case ChoiceFinished():
                            reason = event.reason
                        case ChatFinished():
                            state.usage = ChatUsage(*map(add, astuple(state.usage), astuple(event.usage)))
        except BadRequest as error:
            rename_field(error, FIELDS)
            error.param = plan.tools.request_path(error.param)
            raise
        if plan.image_required and state.image_calls == 0 and not writer.image_calls:
            writer.force_image_call()  # the model's call was cut off, or its engine can't be held to one
        writer.close(reason)
        return reason

    async def _admit(self, plan: ResponsePlan, response: ActiveResponse) -> None:
        """Record and announce a response whose request is sound. A background response has its row already."""
        if response.recorded and not response.record.background:
            await self._store.in_writer(self._store.begin, response.record, plan.inputs)
        response.admit()

    async def _run_image_call(
        self, plan: ResponsePlan, response: ActiveResponse, call: ToolCall, state: LoopState
    ) -> None:
        if plan.image is None:
            raise EngineFailure("The model called a tool that was not offered.")
        fallback_prompt = last_user_text(plan.request.messages) if plan.image_required else None

        def record_item(item: StoredItem) -> Write:
            return self._store.output_write(response.record, len(plan.inputs) + call.index, item)

        result = await self._image_tool.run(plan.key, plan.image, response, call, fallback_prompt, record_item)
        state.image_calls += 1
        add_image_call(state.messages, call.call_id, image_call_arguments(result.item), result.message)
        response.output[call.index] = result.item
        if not result.charged:
            await self._record_item(plan, response, call.index, result.item)
        response.emit_item("response.output_item.done", call.index, result.item)
        if result.interrupted:
            raise asyncio.CancelledError

    async def _record_item(self, plan: ResponsePlan, response: ActiveResponse, index: int, item: OutputItem) -> None:
        if response.recorded:
            stored = StoredItem("output", item)
            await self._store.retry_in_writer(self._store.add_output, response.record, len(plan.inputs) + index, stored)

    async def _finish(
        self, response: ActiveResponse, status: ResponseStatus, usage: ChatUsage, failure: ApiError | None
    ) -> None:
        response.output = [_finished_item(item) for item in response.output]
        ended: ResponseOutcome = {
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": usage_object(usage),
            "error": _error(failure) if failure else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        }
        record = response.record
        has_row = response.recorded and (response.admitted or record.background)
        client_retries = failure is not None and failure.triggers_sdk_retry
        if client_retries and response.has_listeners and not record.survives_disconnect:
            self._expected_retries.add(response.call.identity)
        try:
            if has_row:  # before it is emitted: a client may continue from it at once
                await self._store.retry_in_writer(self._store.finish, record.id, status, ended)
        except Exception as error:  # clients must get the end all the same
            log.exception("the end of a response could not be recorded", response=record.id)
            if isinstance(error, DatabaseBusy):
                self._store.finish_later(record.id, ResponseEnd(status, ended))
        response.end(status, ended, failure)
        if has_row and (record.survives_disconnect or not response.has_listeners):
            await self._store.retry_in_writer(self.record_events, response)

    def record_events(self, response: ActiveResponse) -> None:
        """Record the events without previews and images' bytes, which are in the items. Blocking."""
        events = [with_images(event, {}) for event in response.events if event["type"] != PREVIEW]
        self._store.save_events(response.call.id, events)


def next_turn(plan: ResponsePlan, state: LoopState, number: int, calls_left: int) -> ChatRequest:
    """Return the next request to the model. The caller's tool choice holds for the first turn; then the model is free,
    while it may still draw."""
    choice, allowed = plan.tools.mode, plan.tools.allowed
    if number > 0 and choice == "required":
        choice, allowed = ("none", ()) if plan.image_required else ("auto", allowed)
    if calls_left <= 0 or number == MAX_TURNS - 1:
        names = plan.tools.allowed or tuple(plan.tools.called)
        allowed = tuple(name for name in names if name != IMAGE_FUNCTION)
        choice = "auto" if allowed and choice != "none" else "none"
    limit, spent = plan.request.max_tokens, state.usage.completion_tokens
    left = None if limit is None else max(1, limit - spent)
    messages = tuple(state.messages)
    return replace(plan.request, messages=messages, tool_choice=choice, allowed_tools=allowed, max_tokens=left)


def _end_of_failure(response: ActiveResponse, error: ApiError) -> tuple[ResponseStatus, ApiError | None]:
    """Return the status and the error of a response that failed. A response with a charged image is delivered as it is,
    without an error."""
    if not response.charged:
        return "failed", error
    log.warning("the response ends early, after its image", response=response.call.id, error=error.message)
    return "completed", None


def _finished_item(item: OutputItem) -> OutputItem:
    """Mark an item that was in progress as failed or incomplete, since nothing will finish it."""
    if item["status"] != "in_progress":
        return item
    if item["type"] == "image_generation_call":
        return {**item, "status": "failed"}
    finished = item.copy()
    finished["status"] = "incomplete"
    return finished


def _error(failure: ApiError) -> ResponseError:
    return {"code": ERROR_CODES.get(failure.code or "", "server_error"), "message": failure.message}
