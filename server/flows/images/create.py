"""One image call, read from top to bottom: check, hold, draw, store, capture.

The money rule: a charge is written in the transaction that records the pictures, and nowhere else. Whatever ends a call
before that voids its hold; whatever kills the server before that leaves a hold that start-up voids.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from sqlalchemy.orm import Session

from pipelines.catalog.images import ImageModel
from pipelines.protocol.images import EncodedImage, Failed, Finished, ImageJob
from server.accounts.calls import Write
from server.accounts.keys import Key
from server.accounts.ledger import Call, HoldLost, InsufficientBudget, StoredResult
from server.accounts.money import format_money
from server.backends.engine_host import QueueFull
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded, QuotaExceeded, TimedOut
from server.flows.images.request import ImageCall, check_loras, check_options, find_model, resolve
from server.flows.images.results import build_result, shape_of
from server.flows.moderation import Subject, check_pictures, check_texts
from server.flows.references import load_mask, load_references
from server.services import Services
from server.state.active_calls import RunningCall
from server.state.background_tasks import finish_even_if_cancelled
from server.state.image_result import ImageResult, ImageShape

log = structlog.stdlib.get_logger("darkroom.images")


Also = Callable[[ImageResult], Write]  # what else is recorded of a result, in the transaction that charges it


async def create_images(
    services: Services, key: Key, call: ImageCall, running: RunningCall, also: Also | None = None
) -> ImageResult:
    """Draw what was asked, and tell `running` how it goes. Raises ApiError; nothing is charged unless the pictures are
    stored."""
    model = find_model(services.catalog, call.model, key.groups)
    check_options(call, model, services.settings.max_n, services.images.abilities(model.checkpoint))
    await asyncio.to_thread(check_loras, call, model)
    references = await load_references(services, call.references)
    mask = await load_mask(services, call.mask, references[0] if references else None)
    call_id = running.ticket.call.id
    job = resolve(call, model, call_id, references, mask, services.settings.job_time_limit_s)
    subject = Subject(call_id, key.id, call.endpoint, model.name, model.group, low=call.moderation == "low")
    await check_texts(services, subject, "input", [call.prompt])
    await check_pictures(services, subject, "input", job.references)

    with services.backlog.place(job, running):
        try:
            await _hold(services, Call(call_id, key.id, call.endpoint, model.name, model.price), running)
            services.faults.reach("after-hold")
            finished = await _draw(services, job, running, shape_of(call, model, job))
            await check_pictures(services, subject, "output", finished.images)
            stored = _store_and_capture(services, running, finished, partial(build_result, call, model, job), also)
            result = await finish_even_if_cancelled(stored)
        except BaseException as error:
            await finish_even_if_cancelled(_void(services, model, call_id, error))
            raise
    _count(services, model, finished)
    return result


async def _hold(services: Services, call: Call, running: RunningCall) -> None:
    record = services.book.beginning(running.ticket.call)
    try:
        await finish_even_if_cancelled(asyncio.to_thread(services.ledger.hold, call, record))
    except InsufficientBudget as error:
        raise QuotaExceeded(
            f"This key's budget does not cover the call: {format_money(error.available)} CNY are left and "
            f"{call.model} costs {format_money(error.price)} CNY."
        ) from error


async def _draw(services: Services, job: ImageJob, running: RunningCall, shape: ImageShape) -> Finished:
    """Run the job to its last event. If the call is cancelled, so is the job."""
    try:
        events = services.images.submit(job)
    except QueueFull as error:
        raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error
    try:
        running.admit(shape)
        async for event in events:
            running.report(event)
            if isinstance(event, Finished):
                services.backlog.measured(job.checkpoint, event.unit_s)
                return event
            if isinstance(event, Failed):
                raise _failure(event, job)
    finally:
        services.images.cancel(job.id)
    raise EngineFailure("The image engine ended without a result; nothing was charged.")


def _failure(event: Failed, job: ImageJob) -> ApiError:
    log.warning("job failed", job=job.id, code=event.code, message=event.message, detail=event.detail)
    if event.code == "timed_out":
        return TimedOut(event.message)
    if event.code == "unsupported":
        param = event.param or ("image" if job.mask is None else "mask")
        return BadRequest(event.message, param=param, code="unsupported_parameter")
    return EngineFailure(event.message, code=event.code)


async def _store_and_capture(
    services: Services,
    running: RunningCall,
    finished: Finished,
    result_of: Callable[[Sequence[EncodedImage], Sequence[StoredResult]], ImageResult],
    also: Also | None,
) -> ImageResult:
    """Files first, then one transaction with the charge, the pictures' records and the answer, so that a retry finds
    all or nothing. A file that no record names is swept later."""
    stored = [
        await asyncio.to_thread(_store, services, position, image) for position, image in enumerate(finished.images)
    ]
    services.faults.reach("after-store")
    result = result_of(finished.images, stored)
    records = [services.book.success(result.call_id, result.to_record(), heard=running.heard)]
    if also is not None:
        records.append(also(result))

    def record(session: Session) -> None:
        for write in records:
            write(session)

    try:
        await asyncio.to_thread(services.ledger.capture, result.call_id, stored, record)
    except HoldLost as error:
        log.exception("hold lost: the pictures were drawn and are not charged", job=result.call_id)
        raise EngineFailure(
            "The call lost its hold on the ledger; nothing was charged. Please send it again."
        ) from error
    return result


def _store(services: Services, position: int, image: EncodedImage) -> StoredResult:
    name = services.storage.new_name(image.media_type.rpartition("/")[2])
    services.storage.write(name, image.data)
    return StoredResult(
        name=name,
        media_type=image.media_type,
        width_px=image.width_px,
        height_px=image.height_px,
        size_bytes=len(image.data),
        sha256=hashlib.sha256(image.data).hexdigest(),
        position=position,
    )


async def _void(services: Services, model: ImageModel, call_id: str, error: BaseException) -> None:
    """Give the hold back. There may be none: the budget refused it, or the pictures were captured just before."""
    known = error.code if isinstance(error, ApiError) else None
    reason = "client_left" if isinstance(error, asyncio.CancelledError) else known or type(error).__name__
    await asyncio.to_thread(services.ledger.void, call_id, reason)
    services.metrics.calls.labels(model.name, reason).inc()


def _count(services: Services, model: ImageModel, finished: Finished) -> None:
    services.metrics.calls.labels(model.name, "captured").inc()
    services.metrics.pictures.labels(model.name).inc(len(finished.images))
    services.metrics.run_seconds.labels(model.name).observe(finished.run_s)
