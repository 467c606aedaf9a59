"""The state of an image call by its id: from memory while it runs, from the database afterwards."""

from server.accounts.calls import CallRecord, CallStore
from server.accounts.keys import Key
from server.backends.storage import Storage
from server.errors import NotFound
from server.flows.images.results import load_answer
from server.schemas.images import ImageJobState, ImageProgress
from server.state.active_calls import ActiveCall, ActiveCalls
from server.state.image_result import ImageResult


class CallStatus:
    """Looks calls up."""

    def __init__(self, active: ActiveCalls, store: CallStore, storage: Storage) -> None:
        self._active = active
        self._store = store
        self._storage = storage

    async def describe(self, key: Key, call_id: str) -> ImageJobState:
        """The state of this key's call. Raises NotFound, for other keys' calls too."""
        running = self._active.find(call_id, key.id)
        if running is not None and not running.done:
            return _running_state(running)
        record = await self._store.in_reader(self._store.find, call_id, key.id)
        if record is None:
            message = f"There is no job '{call_id}' of this key; it may be too old."
            raise NotFound(message, param="id", code="job_not_found")
        return await self._recorded_state(record)

    async def _recorded_state(self, record: CallRecord) -> ImageJobState:
        call_id, created, answer = record.call.id, int(record.created_at), record.answer
        if answer is None:
            return ImageJobState(id=call_id, created=created, state=record.state)
        if record.state != "succeeded":
            return ImageJobState(id=call_id, created=created, state=record.state, error=answer)
        result = await load_answer(self._storage, ImageResult.from_record(call_id, answer))
        return ImageJobState(id=call_id, created=created, state=record.state, result=result)


def _running_state(call: ActiveCall) -> ImageJobState:
    progress = ImageProgress(step=call.progress.step, steps=call.progress.steps) if call.progress else None
    return ImageJobState(id=call.call.id, created=int(call.created_at), state=call.state, progress=progress)
