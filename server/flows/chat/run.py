"""Chat jobs on the local chat worker: their events, or the error that the caller gets; their tokens counted."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import structlog

from pipelines.protocol.chat import (
    ChatEvent,
    ChatFinished,
    ChatJob,
    CountFinished,
    CountJob,
    PartialUsage,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from pipelines.protocol.images import Failed, Queued
from server.accounts.db import Database
from server.accounts.keys import Key
from server.accounts.usage import add_chat_usage
from server.backends.engine_host import EngineHost
from server.backends.job_events import JobEvents, QueueFull
from server.errors import ApiError, BadRequest, ContextExceeded, EngineFailure, Overloaded, TimedOut, status_label
from server.schemas.validation import check_text_length, iter_strings
from server.state.tasks import BackgroundTasks
from server.telemetry.call_trace import current_trace
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing

log = structlog.stdlib.get_logger("darkroom.chat")

SCHEMA_CODES = {"response_format": "invalid_json_schema", "tools": "invalid_function_parameters"}


@dataclass(frozen=True, slots=True)
class UsageContext:
    """Whose usage a chat's tokens are: a key, and the model by its served name."""

    key: Key
    model: str


class ChatRunner:
    """Runs chat jobs and counts their tokens."""

    def __init__(
        self,
        engine: EngineHost[ChatJob | CountJob, ChatEvent],
        metrics: Metrics,
        tracing: Tracing,
        database: Database,
        background: BackgroundTasks,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._tracing = tracing
        self._database = database
        self._background = background

    async def run(self, job: ChatJob, usage: UsageContext) -> AsyncGenerator[ChatEvent, None]:
        """Yield the job's events from `Admitted` to `ChatFinished`. Raises ApiError, also between events.

        Closed early (aclose, or a cancelled task) it cancels the job, which ends within a step. The tokens used until
        then are counted in the background.
        """
        events: JobEvents[ChatEvent] | None = None
        outcome = "client_left"
        started_at = time.perf_counter()
        first_token_sent = False
        current_trace().model = usage.model
        try:
            events = await self._submit(job)
            async for event in _check_events(events, job.id):
                if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta) and not first_token_sent:
                    first_token_sent = True
                    first_token_s = time.perf_counter() - started_at
                    self._metrics.queue_seconds.labels("chat", usage.model).observe(events.queue_s or 0.0)
                    self._metrics.chat_first_token_seconds.labels(usage.model).observe(first_token_s)
                if isinstance(event, ChatFinished | PartialUsage):
                    await self.record_usage(usage, event.usage.prompt_tokens, event.usage.completion_tokens)
                if isinstance(event, ChatFinished):
                    self._metrics.chat_run_seconds.labels(usage.model).observe(event.run_s)
                    current_trace().add_run(event.run_s, events.queue_s)
                    self._tracing.phase("queue", events.queue_s or 0.0, ended_ago_s=event.run_s)
                    self._tracing.phase("run", event.run_s)
                    outcome = "finished"
                if not isinstance(event, PartialUsage):
                    yield event
        except ApiError as error:
            outcome = error.label
            raise
        except Exception:
            outcome = status_label(500)
            raise
        finally:
            self._engine.cancel(job.id)
            if events is not None and not events.ended:
                self._background.spawn(self._record_remaining(usage, events))
            self._metrics.chats.labels(usage.model, outcome).inc()

    async def count_tokens(self, job: CountJob) -> CountFinished:
        """Return how many tokens the conversation has as a prompt. Raises ApiError."""
        try:
            events = await self._submit(job)
            async with asyncio.timeout(events.limit_s(job.time_limit_s)):
                async for event in _check_events(events, job.id):
                    if isinstance(event, CountFinished):
                        return event
        except TimeoutError as error:
            raise TimedOut("The tokens could not be counted in time.") from error
        finally:
            self._engine.cancel(job.id)
        raise EngineFailure("The chat engine ended without an answer.")

    async def record_usage(self, usage: UsageContext, prompt_tokens: int, completion_tokens: int) -> None:
        """Count an ended chat's tokens in the operator's report and in /metrics. An error is logged, never raised, and
        a busy database keeps no chat waiting."""
        current_trace().add_tokens(prompt_tokens, completion_tokens)
        await self._background.settle(self._count_usage(usage, prompt_tokens, completion_tokens))

    async def _count_usage(self, usage: UsageContext, prompt_tokens: int, completion_tokens: int) -> None:
        try:
            self._metrics.chat_tokens.labels(usage.model, "prompt").inc(prompt_tokens)
            self._metrics.chat_tokens.labels(usage.model, "completion").inc(completion_tokens)
            counts = (usage.key.id, usage.model, prompt_tokens, completion_tokens)
            await self._database.retry_in_writer(add_chat_usage, self._database, *counts)
        except Exception:
            log.exception("tokens were not counted", key=usage.key.id, model=usage.model)

    async def _record_remaining(self, usage: UsageContext, events: JobEvents[ChatEvent]) -> None:
        """Count a cancelled job's tokens: its usage comes after the caller has stopped reading."""
        async for event in events:
            if isinstance(event, ChatFinished | PartialUsage):
                await self.record_usage(usage, event.usage.prompt_tokens, event.usage.completion_tokens)

    async def _submit(self, job: ChatJob | CountJob) -> JobEvents[ChatEvent]:
        """Give the job to the worker. Raises Overloaded, and BadRequest for a conversation longer than any model's
        context."""
        await asyncio.to_thread(check_text_length, iter_strings((job.messages, job.tools)))
        try:
            events = self._engine.submit(job)
        except QueueFull as error:
            raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error
        current_trace().wake_s += events.wake_s
        return events


async def _check_events(events: JobEvents[ChatEvent], job_id: str) -> AsyncIterator[ChatEvent]:
    """Yield the worker's events except `Queued`. Raises ApiError for `Failed`, and for a stream without a final
    event."""
    last: ChatEvent | None = None
    async for event in events:
        last = event
        if isinstance(event, Failed):
            raise _to_api_error(event, job_id)
        if not isinstance(event, Queued):
            yield event
    if not isinstance(last, ChatFinished | CountFinished):
        raise EngineFailure("The chat engine ended without an answer.")


def _to_api_error(event: Failed, job_id: str) -> ApiError:
    field = (event.param or "").partition(".")[0].partition("[")[0]
    match event.code:
        case "context_length_exceeded":
            tokens, context = event.context or (None, None)
            return ContextExceeded(event.message, tokens=tokens, context=context, param=event.param)
        case "invalid_value":
            return BadRequest(event.message, param=event.param, code=SCHEMA_CODES.get(field, event.code))
        case "unsupported":
            return BadRequest(event.message, param=event.param, code="unsupported_parameter")
        case "timed_out":
            return TimedOut(event.message)
        case "queue_full":
            return Overloaded(event.message, event.retry_after_s or 0)
    log.warning("chat failed", job=job_id, code=event.code, message=event.message, detail=event.detail)
    if event.code == "memory_taken":
        return Overloaded(event.message, event.retry_after_s or 0, code=event.code)
    return EngineFailure(event.message, code=event.code)
