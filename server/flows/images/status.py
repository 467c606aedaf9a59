"""What has become of a call, for who knows its id: from memory while it runs, from the database ever after."""

import asyncio

from server.accounts.calls import CallRecord
from server.accounts.keys import Key
from server.errors import NotFound
from server.flows.images.results import answer_of
from server.schemas.images import ImageJobState, ImageProgress
from server.services import Services
from server.state.active_calls import RunningCall
from server.state.image_result import ImageResult


async def describe_job(services: Services, key: Key, job_id: str) -> ImageJobState:
    """The state of this key's call. Raises NotFound, for other keys' calls too."""
    running = services.calls.find(job_id, key.id)
    if running is not None and not running.over:
        return _while_running(running)
    record = await asyncio.to_thread(services.book.find, job_id, key.id)
    if record is None:
        raise NotFound(f"There is no job '{job_id}' of this key; it may be too old.", param="id", code="job_not_found")
    return await _as_recorded(services, record)


def _while_running(call: RunningCall) -> ImageJobState:
    progress = ImageProgress(step=call.progress.step, steps=call.progress.steps) if call.progress else None
    return ImageJobState(id=call.ticket.call.id, created=int(call.created_at), state=call.state, progress=progress)


async def _as_recorded(services: Services, record: CallRecord) -> ImageJobState:
    call_id, created, answer = record.call.id, int(record.created_at), record.answer
    if answer is None:
        return ImageJobState(id=call_id, created=created, state=record.state)
    if record.state != "succeeded":
        return ImageJobState(id=call_id, created=created, state=record.state, error=answer)
    result = await answer_of(services, ImageResult.from_record(call_id, answer))
    return ImageJobState(id=call_id, created=created, state=record.state, result=result)
