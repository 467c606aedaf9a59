"""One chat job on the local chat worker: its events, or the error that the caller gets; its tokens counted."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import structlog

from pipelines.protocol.chat import (
    ChatEvent,
    ChatFinished,
    ChatJob,
    Counted,
    CountJob,
    ReasoningDelta,
    Spent,
    TextDelta,
    ToolCallDelta,
)
from pipelines.protocol.images import Failed, Queued
from server.accounts.chat_usage import add_chat
from server.accounts.keys import Key
from server.backends.engine_host import JobEvents, QueueFull
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded, TimedOut
from server.flows.text_limits import check_length, strings_of
from server.services import Services
from server.state.background_tasks import finish_even_if_cancelled

log = structlog.stdlib.get_logger("darkroom.chat")

SCHEMA_CODES = {"response_format": "invalid_json_schema", "tools": "invalid_function_parameters"}


@dataclass(frozen=True, slots=True)
class Tally:
    """Under whose name a chat runs and its tokens are counted: a key, and the model as it is served."""

    key: Key
    model: str


async def run_chat(services: Services, job: ChatJob, tally: Tally) -> AsyncGenerator[ChatEvent, None]:
    """The job's events from `Admitted` to `ChatFinished`. Raises ApiError, also on the way.

    Closed early (aclose, or a cancelled task) it cancels the job, which ends within a step. What the job has used is
    counted then too.
    """
    told: JobEvents[ChatEvent] | None = None
    outcome = "client_left"
    began = time.perf_counter()
    heard = False
    try:
        told = await _submit(services, job)
        async for event in _checked(told, job.id):
            if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta) and not heard:
                heard = True
                services.metrics.chat_first_token_seconds.labels(tally.model).observe(time.perf_counter() - began)
            if isinstance(event, ChatFinished | Spent):
                await count_chat(services, tally, event.usage.prompt_tokens, event.usage.completion_tokens)
            if isinstance(event, ChatFinished):
                services.metrics.chat_run_seconds.labels(tally.model).observe(event.run_s)
                outcome = "finished"
            if not isinstance(event, Spent):
                yield event
    except ApiError as error:
        outcome = error.code or type(error).__name__
        raise
    finally:
        services.chat.cancel(job.id)
        if told is not None and not told.ended:
            services.loose_ends.leave(_count_rest(services, tally, told))
        services.metrics.chats.labels(tally.model, outcome).inc()


async def count_tokens(services: Services, job: CountJob) -> Counted:
    """How long the conversation is as a prompt. Raises ApiError."""
    try:
        async with asyncio.timeout(job.time_limit_s):
            async for event in _checked(await _submit(services, job), job.id):
                if isinstance(event, Counted):
                    return event
    except TimeoutError as error:
        raise TimedOut("The tokens could not be counted in time.") from error
    finally:
        services.chat.cancel(job.id)
    raise EngineFailure("The chat engine ended without an answer.")


async def count_chat(services: Services, tally: Tally, prompt_tokens: int, completion_tokens: int) -> None:
    """Record what a chat that ended had: for the operator's report and for /metrics. No chat fails by that."""
    counts = (tally.key.id, tally.model, prompt_tokens, completion_tokens)
    try:
        services.metrics.chat_tokens.labels(tally.model, "prompt").inc(prompt_tokens)
        services.metrics.chat_tokens.labels(tally.model, "completion").inc(completion_tokens)
        await finish_even_if_cancelled(asyncio.to_thread(add_chat, services.database, *counts))
    except Exception:
        log.exception("tokens were not counted", key=tally.key.id, model=tally.model)


async def _count_rest(services: Services, tally: Tally, told: JobEvents[ChatEvent]) -> None:
    """The job's last words, which nobody waits for any more."""
    async for event in told:
        if isinstance(event, ChatFinished | Spent):
            await count_chat(services, tally, event.usage.prompt_tokens, event.usage.completion_tokens)


async def _submit(services: Services, job: ChatJob | CountJob) -> JobEvents[ChatEvent]:
    """Raises Overloaded, and BadRequest for a conversation that no model reads."""
    await asyncio.to_thread(check_length, strings_of((job.messages, job.tools)))
    try:
        return services.chat.submit(job)
    except QueueFull as error:
        raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error


async def _checked(events: JobEvents[ChatEvent], job_id: str) -> AsyncIterator[ChatEvent]:
    """What the worker says, without its waiting; its last word is none of Failed. Raises ApiError."""
    last: ChatEvent | None = None
    async for event in events:
        last = event
        if isinstance(event, Failed):
            raise _failure(event, job_id)
        if not isinstance(event, Queued):
            yield event
    if not isinstance(last, ChatFinished | Counted):
        raise EngineFailure("The chat engine ended without an answer.")


def _failure(event: Failed, job_id: str) -> ApiError:
    field = (event.param or "").partition(".")[0].partition("[")[0]
    match event.code:
        case "context_length_exceeded":
            return BadRequest(event.message, param=event.param or "messages", code=event.code)
        case "invalid_value":
            return BadRequest(event.message, param=event.param, code=SCHEMA_CODES.get(field, event.code))
        case "unsupported":
            return BadRequest(event.message, param=event.param, code="unsupported_parameter")
        case "timed_out":
            return TimedOut(event.message)
    log.warning("chat failed", job=job_id, code=event.code, message=event.message, detail=event.detail)
    return EngineFailure(event.message, code=event.code)
