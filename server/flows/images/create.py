"""One image call, read from top to bottom: check, hold, draw, store, capture.

The money rule: a charge is written in the transaction that records the images, and nowhere else. Anything that ends a
call before that voids its hold. If the server is killed before that, the hold is voided at the next start.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from pipelines.protocol.images import EncodedImage, Failed, Finished, ImageJob, Started
from server.accounts.keys import Key
from server.accounts.ledger import BilledCall, HoldLost, InsufficientBudget
from server.accounts.results import StoredResult
from server.accounts.store import Write
from server.backends.job_events import QueueFull
from server.backends.signing import ImageSigner
from server.backends.worker_pool import WorkerPool
from server.catalog.images import ImageModel
from server.errors import (
    ApiError,
    BadImageRequest,
    BadRequest,
    DatabaseBusy,
    EngineFailure,
    InvalidImage,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    RateLimited,
    TimedOut,
    status_label,
)
from server.flows.admission import find_image_model
from server.flows.images.enhancing import PromptWriter, enhance_prompt, shorten_prompt, should_enhance, should_shorten
from server.flows.images.enlarging import check_enlarging
from server.flows.images.request import (
    ImageRequest,
    InputImages,
    build_job,
    check_loras,
    check_options,
    hole_of,
)
from server.flows.images.results import answer_format, build_result, origins_write, sent_images, shape_of
from server.flows.images.time_limit import check_time
from server.flows.moderation import ModerationContext, Moderator
from server.flows.references import ReferenceLoader
from server.money import UNITS_PER_CNY, format_money
from server.parts import Running, Stores, Telemetry
from server.state.active_calls import ActiveCall, ImageResult, ImageShape
from server.state.served import ServedCatalog
from server.state.tasks import CancelReason, run_to_completion
from server.telemetry.call_trace import current_trace

log = structlog.stdlib.get_logger("darkroom.images")

CUTS = 5  # of an enhanced prompt that is too long: one or two, unless its tokens are spread unevenly
CAPTURE_ATTEMPTS = 3  # one that was cut off by the database's restart, one that works, and one to spare
VOID_REASONS = {  # of a call that was cancelled
    None: "client_left",
    CancelReason.ABANDONED: "client_left",
    CancelReason.REQUESTED: "cancelled",
    CancelReason.BY_OPERATOR: "cancelled_by_operator",
    CancelReason.SHUTDOWN: "server_stopped",
}
ExtraWrites = Callable[[ImageResult], Write]  # what else is recorded in the transaction that charges a result


@dataclass(frozen=True, slots=True)
class ImageParts:
    """The parts that image calls are drawn with."""

    catalog: ServedCatalog
    engine: WorkerPool
    references: ReferenceLoader
    moderator: Moderator
    prompt_writer: PromptWriter


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The settings of image calls."""

    max_n: int
    answers_with_bytes: bool
    time_limit_s: float
    keep_prompts: bool
    marks: bool
    signer: ImageSigner | None


class ImageCreator:
    """Draws image calls. One for the whole server: the values of a call are passed to `create`."""

    def __init__(
        self, parts: ImageParts, rules: ImageRules, stores: Stores, running: Running, telemetry: Telemetry
    ) -> None:
        self._parts = parts
        self._rules = rules
        self._stores = stores
        self._running = running
        self._telemetry = telemetry

    async def create(
        self, key: Key, request: ImageRequest, call: ActiveCall, extra_writes: ExtraWrites | None = None
    ) -> ImageResult:
        """Draw the images and report progress to `call`. Raises ApiError; then nothing was charged."""
        catalog = self._parts.catalog.current
        model = find_image_model(catalog, request.model, key.groups, request.size).drawn_with(request.reference_count)
        if call.counts_towards_limit:  # else it is a part of a response, whose model is another
            current_trace().model = model.name
        self.check(request, model)
        enhances = should_enhance(request, model, key, self._parts.prompt_writer)
        billed = BilledCall(call.call.id, key.id, request.endpoint, model.name, model.price_units)
        job = await self._job(key, request, model, billed)
        context = ModerationContext(
            job.id, key.id, request.endpoint, model.name, model.group, low=request.moderation == "low"
        )
        await self._check_input(context, request, job)

        with self._running.backlog.reserve(job, call):
            try:
                await self._hold(billed, call, request.webhook)
                self._telemetry.crash_points.hit("after-hold")
                shape = shape_of(request, model, job)
                draw = partial(self._draw, model=model.name, call=call, shape=shape)
                if enhances:
                    call.admit(shape)
                    job, finished = await self._draw_enhanced(job, key, context, draw)
                else:
                    finished = await draw(job)
                await self._parts.moderator.check_images(context, "output", finished.images)
                if self._rules.signer is not None:
                    finished = await self._rules.signer.signed(finished, job.encoding)
                format_ = answer_format(request, self._parts.catalog.current, with_bytes=self._rules.answers_with_bytes)
                to_result = partial(build_result, request, model, job, format_, finished)
                extras = [extra_writes] if extra_writes is not None else []
                if self._rules.keep_prompts:
                    made_from = await asyncio.to_thread(sent_images, request)
                    extras.append(partial(origins_write, request, job, finished, made_from))
                result = await self._to_captured(
                    call, self._store_and_capture(call, model.price_units, finished, to_result, extras)
                )
            except BaseException as error:
                await run_to_completion(self._void(model, call, error))
                raise
        self._count(model, finished)
        return result

    async def _job(self, key: Key, request: ImageRequest, model: ImageModel, billed: BilledCall) -> ImageJob:
        """Load what the request names, and build its job. Raises ApiError."""
        await asyncio.to_thread(check_loras, request, model, self._parts.engine.capabilities(model.checkpoint))
        references = await self._parts.references.load(key.id, request.references)
        first = references[0] if references else None
        mask = await self._parts.references.load_mask(key.id, request.mask, first)
        maps = await self._parts.references.load(key.id, [each.image for each in request.controls])
        capabilities = self._parts.engine.capabilities(model.checkpoint)
        images = InputImages(references, mask, maps, await asyncio.to_thread(hole_of, mask))
        job = build_job(request, model, billed, images, self._rules.time_limit_s, capabilities)
        job = replace(job, tier=key.tier(request.service_tier))
        check_time(job, self._running.backlog.least_s(job))
        if not self._rules.marks:
            job = replace(job, encoding=replace(job.encoding, source=None))
        return job

    async def _check_input(self, context: ModerationContext, request: ImageRequest, job: ImageJob) -> None:
        """Moderate all that the caller sent. Raises ModerationBlocked."""
        await self._parts.moderator.check_texts(context, "input", _texts(request))
        sent = [*job.references, *(each.image for each in job.controls)]
        await self._parts.moderator.check_images(context, "input", sent)

    async def _draw_enhanced(
        self, job: ImageJob, key: Key, context: ModerationContext, draw: Callable[[ImageJob], Awaitable[Finished]]
    ) -> tuple[ImageJob, Finished]:
        """Draw as much as the text encoders read of the prompt that a chat model makes. Return the job as it was drawn,
        too. Raises ApiError."""
        capabilities = self._parts.engine.capabilities(job.checkpoint)
        try:
            job = await enhance_prompt(
                job, key, self._parts.prompt_writer, capabilities.prompt_tokens if capabilities else None
            )
        finally:
            current_trace().model = context.model  # the call is of the image model
        await self._parts.moderator.check_texts(context, "input", [job.prompt])
        for _ in range(CUTS if should_shorten(job, capabilities) else 0):
            try:
                return job, await draw(replace(job, sampling=replace(job.sampling, long_prompt="refuse")))
            except PromptTooLong as error:  # before its first step
                if error.param != "prompt":
                    break
                job = shorten_prompt(job, error.read_part)
        return job, await draw(job)

    def check(self, request: ImageRequest, model: ImageModel) -> None:
        """Refuse fields that this model or this server can't serve. Raises BadRequest."""
        model = model.drawn_with(request.reference_count)
        capabilities = self._parts.engine.capabilities(model.checkpoint)
        if request.scale is not None:
            check_enlarging(request, model, capabilities)
            return
        if model.checkpoint.conditioning == "upscale":
            message = f"Model `{model.name}` enlarges images, and draws none: send one to POST /v1/images/upscale."
            raise BadRequest(message, param="model", code="unsupported_value")
        check_options(request, model, self._rules.max_n, capabilities)

    async def _hold(self, call: BilledCall, running: ActiveCall, webhook: str | None) -> None:
        """Hold the price of a call and record the call. A call that is cancelled meanwhile may be held. Raises
        QuotaExceeded and DatabaseBusy."""
        writes = [self._stores.calls.begin_write(running.call)]
        if webhook is not None:
            writes.append(self._stores.webhooks.begin_write(call.call_id, webhook))
        running.recorded = True
        try:
            await run_to_completion(self._stores.ledger.in_writer(self._stores.ledger.hold, call, writes))
        except Exception as error:
            running.recorded = isinstance(error, DatabaseBusy) and error.began and not error.undone
            if not isinstance(error, InsufficientBudget):
                raise
            budget, left = ("monthly budget", "are left this month") if error.monthly else ("budget", "are left")
            whose = f"The {budget} of this key's team '{error.team}'" if error.team else f"This key's {budget}"
            raise QuotaExceeded(
                f"{whose} does not cover the call: {format_money(error.available_units)} CNY {left} and "
                f"{call.model} costs {format_money(error.price_units)} CNY."
            ) from error

    async def _draw(self, job: ImageJob, model: str, call: ActiveCall, shape: ImageShape) -> Finished:
        """Run the job to its last event. If the call is cancelled, so is the job."""
        try:
            events = self._parts.engine.submit(job)
        except QueueFull as error:
            raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error
        started_at = time.monotonic()
        current_trace().wake_s += events.wake_s
        call.record_wake(events.wake_s)
        try:
            call.admit(shape)
            async for event in events:
                call.report(event)
                if isinstance(event, Started):
                    started_at = time.monotonic()
                    self._telemetry.metrics.queue_seconds.labels("image", model).observe(events.queue_s or 0.0)
                    self._telemetry.tracing.phase("queue", events.queue_s or 0.0)
                if isinstance(event, Finished):
                    self._telemetry.tracing.phase("run", time.monotonic() - started_at)
                    self._running.backlog.record(job, event)
                    current_trace().add_run(event.run_s, events.queue_s)
                    return event
                if isinstance(event, Failed):
                    raise _to_api_error(event, job)
        finally:
            self._parts.engine.cancel(job.id)
        raise EngineFailure("The image engine ended without a result; nothing was charged.")

    async def _to_captured(self, call: ActiveCall, work: Coroutine[Any, Any, ImageResult]) -> ImageResult:
        """Return the result of storing and charging. A cancellation is too late once the charge is written: its caller
        would believe that nothing was charged, and send the call again."""
        try:
            with self._telemetry.tracing.span("store"):
                return await run_to_completion(work)
        except asyncio.CancelledError:
            if call.captured is None:
                raise
            return call.captured

    async def _store_and_capture(
        self,
        call: ActiveCall,
        price_units: int,
        finished: Finished,
        to_result: Callable[[Sequence[StoredResult]], ImageResult],
        extra_writes: Sequence[ExtraWrites],
    ) -> ImageResult:
        """Store the files first, then write one transaction with the charge, the images' records and the answer, so
        that a retry finds all or nothing. A file without a record is swept later."""
        stored = await self._store(finished.images)
        self._telemetry.crash_points.hit("after-store")
        if not stored:
            raise EngineFailure("The image engine finished without an image; nothing was charged.")
        result = to_result(stored)
        success = self._stores.calls.success_write(result.call_id, result.to_record(), delivered=call.answered)
        extras = [write(result) for write in extra_writes]
        writes = [self._stores.results.record_write(result.call_id, stored), success, *extras]
        await self._capture(result.call_id, price_units, writes)
        call.captured = result
        current_trace().add_charge(price_units, len(stored))
        return result

    async def _capture(self, call_id: str, price_units: int, writes: Sequence[Write]) -> None:
        """Charge the call. A transaction that was cut off is repeated: it may be committed, and if not, the images
        would be lost."""
        attempts, ledger = 0, self._stores.ledger
        while True:
            attempts += 1
            try:
                return await ledger.retry_in_writer(ledger.capture, call_id, price_units, writes)
            except DatabaseBusy as error:
                if not error.began or attempts == CAPTURE_ATTEMPTS:
                    raise
            except HoldLost as error:
                log.exception("hold lost: the images were drawn and are not charged", job=call_id)
                raise EngineFailure(
                    "The call lost its hold on the ledger; nothing was charged. Please send it again."
                ) from error

    async def _store(self, images: Sequence[EncodedImage]) -> list[StoredResult]:
        """Write a call's images into the storage, under names that the database gives them."""
        if not images:
            return []
        files, stored_files = self._stores.files, self._stores.stored_files
        extension = images[0].media_type.rpartition("/")[2]
        names = await stored_files.retry_in_writer(stored_files.name_new, extension, len(images))
        named = enumerate(zip(names, images, strict=True))
        return [await files.in_thread(self._write, name, position, image) for position, (name, image) in named]

    def _write(self, name: str, position: int, image: EncodedImage) -> StoredResult:
        self._stores.files.write(name, image.data)
        return StoredResult(
            name=name,
            media_type=image.media_type,
            width_px=image.width_px,
            height_px=image.height_px,
            size_bytes=len(image.data),
            sha256=hashlib.sha256(image.data).hexdigest(),
            position=position,
        )

    async def _void(self, model: ImageModel, call: ActiveCall, error: BaseException) -> None:
        """Void the hold, unless there is none: the images may have been captured just before."""
        reason = error.label if isinstance(error, ApiError) else status_label(500)
        if isinstance(error, asyncio.CancelledError):
            reason = VOID_REASONS[call.cancel_reason]
        if call.recorded:
            void = self._stores.ledger.retry_in_writer(self._stores.ledger.void, call.call.id, reason)
            await self._running.background.settle(void)
        self._telemetry.metrics.calls.labels(model.name, reason).inc()

    def _count(self, model: ImageModel, finished: Finished) -> None:
        self._telemetry.metrics.calls.labels(model.name, "captured").inc()
        self._telemetry.metrics.charged_cny.labels(model.name).inc(model.price_units / UNITS_PER_CNY)
        self._telemetry.metrics.images.labels(model.name).inc(len(finished.images))
        self._telemetry.metrics.run_seconds.labels(model.name).observe(finished.run_s)


def _texts(request: ImageRequest) -> list[str]:
    """Return the texts that the caller wrote: the prompts, and names of adapters, which tell their subjects."""
    sampling = request.sampling
    return [text for text in (request.prompt, sampling.negative_prompt, *(sampling.loras or {})) if text]


def _to_api_error(event: Failed, job: ImageJob) -> ApiError:
    log.warning("job failed", job=job.id, code=event.code, message=event.message, detail=event.detail)
    if event.code == "timed_out":
        return TimedOut(event.message)
    if event.code == "unsupported":
        param = event.param or ("image" if job.mask is None else "mask")
        return BadRequest(event.message, param=param, code="unsupported_parameter")
    if event.code == "invalid_picture":
        return InvalidImage(event.message, event.param)
    if event.code == "prompt_too_long":
        return PromptTooLong(event.message, event.param, event.read_part or 0.0)
    if event.code in {"upstream_rejected", "moderation_blocked"}:
        code = event.code if event.code == "moderation_blocked" else None
        return BadImageRequest(event.message, param=event.param, code=code)
    if event.code in {"upstream_busy", "queue_full", "memory_taken"}:
        # a full queue as if it were this server's own
        named = event.code if event.code != "queue_full" else None
        return Overloaded(event.message, event.retry_after_s or 0, code=named)
    if event.code == "upstream_limited":
        return RateLimited(event.message, event.retry_after_s or 0)
    return EngineFailure(event.message, code=event.code)
