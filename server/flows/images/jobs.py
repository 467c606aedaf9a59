"""Image calls by their ids: from memory while they run, from the database afterwards."""

import base64
from typing import cast

from server.accounts.calls import CallRecord, CallStore
from server.accounts.keys import Key
from server.accounts.paging import Page, UnknownEntry
from server.backends.storage import Storage
from server.errors import ErrorDetail, NotFound, RunsElsewhere
from server.flows.images.results import load_answer
from server.schemas.image_jobs import ImageJobList, ImageJobState, ImagePreview, ImageProgress, JobState
from server.state.active_calls import ActiveCall, ActiveCalls, ImageResult
from server.state.active_chats import ENDPOINT as CHAT_ENDPOINT
from server.state.image_backlog import Backlog

ENDPOINTS = ("images.generations", "images.edits", "images.upscale")


class ImageJobs:
    """Looks calls up, and cancels them."""

    def __init__(self, active: ActiveCalls, store: CallStore, storage: Storage, backlog: Backlog, owner: str) -> None:
        self._active = active
        self._owner = owner
        self._store = store
        self._storage = storage
        self._backlog = backlog

    async def describe(self, key: Key, call_id: str, *, previews: bool = False) -> ImageJobState:
        """Return the state of this key's call. Raises NotFound, for other keys' calls too, and RunsElsewhere."""
        running = self._active.find(call_id, key.id)
        if running is not None and not running.done:
            return self._running_state(running, previews=previews)
        return await self._recorded_state(await self._find_here(key, call_id))

    async def cancel(self, key: Key, call_id: str) -> ImageJobState:
        """End a call; one that has ended stays as it is. Raises NotFound and RunsElsewhere."""
        running = self._active.find(call_id, key.id)
        if running is not None:
            await running.cancel_and_wait()
            if not running.recorded:
                error = running.failure.body()["error"] if running.failure else None
                return ImageJobState(id=call_id, created=int(running.created_at), state="cancelled", error=error)
        return await self._recorded_state(await self._find_here(key, call_id))

    async def list(self, key: Key, state: JobState | None, page: Page) -> ImageJobList:
        """Return a page of this key's calls, without results. Raises NotFound for an unknown `after`."""
        stored = "running" if state == "queued" else state
        try:
            records = await self._store.in_reader(self._store.page, key.id, ENDPOINTS, stored, page)
        except UnknownEntry:
            raise _not_found(page.after or "", "after") from None
        shown = [self._listed_state(record) for record in records[: page.limit]]
        data = [job for job in shown if state is None or job.state == state]
        return ImageJobList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=records[: page.limit][-1].call.id if records else None,
            has_more=len(records) > page.limit,
        )

    async def _find_here(self, key: Key, call_id: str) -> CallRecord:
        """Find a call that does not run on another server. Raises NotFound and RunsElsewhere."""
        record = await self._store.in_reader(self._store.find, call_id, key.id)
        if record is None or record.call.endpoint == CHAT_ENDPOINT:
            raise _not_found(call_id, "id")
        if record.state == "running" and record.owner != self._owner:
            message = f"The job '{record.call.id}' runs on another server, which alone knows its state."
            raise RunsElsewhere(message, owner=record.owner, key_id=record.call.key_id)
        return record

    async def _recorded_state(self, record: CallRecord) -> ImageJobState:
        state = self._listed_state(record)
        if record.state == "succeeded" and record.answer is not None:
            state.result = await load_answer(self._storage, ImageResult.from_record(record.call.id, record.answer))
        return state

    def _listed_state(self, record: CallRecord) -> ImageJobState:
        running = self._active.find(record.call.id, record.call.key_id)
        if running is not None and not running.done:
            return self._running_state(running, previews=False)
        return _state_of_recorded(record)

    def _running_state(self, call: ActiveCall, *, previews: bool) -> ImageJobState:
        estimate = self._backlog.estimate_job(call.call.id)
        return ImageJobState(
            id=call.call.id,
            created=int(call.created_at),
            model=estimate.model if estimate else None,
            state=call.state,
            position=estimate.position if estimate else None,
            estimated_s=estimate.estimated_s if estimate else None,
            progress=ImageProgress(step=call.progress.step, steps=call.progress.steps) if call.progress else None,
            previews=_newest_previews(call) if previews else None,
        )


def ended_state(record: CallRecord) -> ImageJobState:
    """Return the state of a call that has ended, with its images' URLs."""
    state = _state_of_recorded(record)
    if record.state == "succeeded" and record.answer is not None:
        state.result = ImageResult.from_record(record.call.id, record.answer).answer
    return state


def _state_of_recorded(record: CallRecord) -> ImageJobState:
    """Return the state of a recorded call, without its result."""
    return ImageJobState(
        id=record.call.id,
        created=int(record.created_at),
        model=record.model,
        state=record.state,
        error=cast("ErrorDetail | None", record.answer) if record.state in {"failed", "cancelled"} else None,
    )


def _newest_previews(call: ActiveCall) -> list[ImagePreview]:
    newest = {preview.index: preview for preview in call.events}
    return [
        ImagePreview(
            image_index=index,
            partial_image_index=preview.number,
            b64_json=base64.b64encode(preview.image.data).decode(),
        )
        for index, preview in sorted(newest.items())
    ]


def _not_found(call_id: str, param: str) -> NotFound:
    message = f"There is no job '{call_id[:60]}' of this key; it may be too old."
    return NotFound(message, param=param, code="job_not_found")
