"""Image calls that run."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from pipelines.protocol.images import Background, Event, Preview, Progress, Started
from server.accounts.calls import CallId
from server.errors import ApiError, Cancelled, EngineFailure, ServerStopping
from server.schemas.images import ImageAnswer
from server.state.active_job import ActiveJob, ActiveJobs
from server.state.tasks import CancelReason

AnswerFormat = Literal["url", "b64_json", "both"]


@dataclass(frozen=True, slots=True)
class ImageShape:
    """The properties of the images that are known before they are drawn."""

    size: str
    quality: str | None
    output_format: str
    background: Background = "opaque"


@dataclass(frozen=True, slots=True)
class ImageResult:
    """A call whose images are stored. `answer` names them by URL; `files` are their names in the storage.

    `images` are the files' bytes while the call has just ended: it is charged, so its answer must not depend on a
    storage that may have gone away since.
    """

    call_id: str
    answer: ImageAnswer
    files: tuple[str, ...]
    response_format: AnswerFormat
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> ImageShape:
        """Return the shape of the images that were drawn."""
        return ImageShape(self.answer.size, self.answer.quality, self.answer.output_format, self.answer.background)

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON for the database. There are no bytes in it: those are in the storage."""
        answer = self.answer.model_dump(mode="json")
        return {"answer": answer, "files": list(self.files), "response_format": self.response_format}

    @classmethod
    def from_record(cls, call_id: str, record: Mapping[str, Any]) -> "ImageResult":
        """Build the result from a record that `to_record` wrote."""
        answer = ImageAnswer.model_validate(record["answer"])
        return cls(call_id, answer, tuple(record["files"]), record["response_format"])


log = structlog.stdlib.get_logger("darkroom.calls")

RETRY_WINDOW_S = 15 * 60.0  # how long after its end a call without an Idempotency-Key still answers a retry


class ActiveCall(ActiveJob[Preview]):
    """One image call. Its events are previews; its end is a result or a failure.

    A nested call is a part of a response: it does not count towards the key's limit.
    """

    def __init__(self, call: CallId, grace_s: float, *, is_nested: bool = False, replayed: bool = False) -> None:
        super().__init__(call, grace_s, replayed=replayed)
        self.counts_towards_limit = not is_nested
        self.state: Literal["queued", "running"] = "queued"
        self.progress: Progress | None = None
        self.shape: ImageShape | None = None  # set by `admit`
        self._awake_at = 0.0  # when its checkpoint is back that had to be woken, by the monotonic clock
        self.recorded = False  # its hold and its row are in the database, or may be
        self.response_started = False  # a client has read status 200, so a failure can only cut its answer off
        self.captured: ImageResult | None = None  # charged: whatever is cancelled now, this is how the call ends
        self._result: ImageResult | None = None

    @property
    def done(self) -> bool:
        """Return whether `result` returns or raises at once."""
        return self._result is not None or self.failure is not None

    @property
    def admitted(self) -> bool:
        """Return whether the price is held and the job has its place in the queue."""
        return self.shape is not None

    def admit(self, shape: ImageShape) -> None:
        """Mark the call as admitted: the price is held and the job is queued. `shape` is that of the images to draw."""
        self.shape = shape
        self._notify()

    def record_wake(self, wake_s: float) -> None:
        """Record that the call waits for its checkpoint to be loaded again, for about `wake_s` seconds."""
        self._awake_at = time.monotonic() + wake_s

    @property
    def wake_left_s(self) -> float:
        """Return the estimated seconds until the checkpoint is loaded again, while the call waits for that; else 0."""
        return max(0.0, self._awake_at - time.monotonic()) if self.state == "queued" else 0.0

    def report(self, event: Event) -> None:
        """Record an event of the engine."""
        match event:
            case Started():
                self.state = "running"
            case Progress():
                self.progress = event
            case Preview(index, number):  # one that moves to another worker has its first ones again
                if not any((seen.index, seen.number) == (index, number) for seen in self.events):
                    self.events.append(event)
        self._notify()

    def cancel(self, reason: CancelReason = CancelReason.REQUESTED) -> None:
        """Cancel the task at its next await, unless the call has been charged: then it is about to end."""
        if self.captured is None:
            super().cancel(reason)

    def end(self, outcome: ImageResult | ApiError) -> None:
        """Set the result or the failure."""
        if isinstance(outcome, ApiError):
            self.failure = outcome
        else:
            self._result = outcome
        self._notify()

    async def admission(self) -> ImageShape:
        """Return the shape of the images to draw, once the call is admitted. Raises ApiError if it failed before."""
        await self.wait_admitted()
        return self.shape or (await self.result()).shape

    async def result(self) -> ImageResult:
        """Return the result, once the call has ended. Raises its failure. A waiter that is cancelled does not cancel
        the call."""
        await self.wait_done()
        if self._result is None:
            raise self.failure or RuntimeError("an ended call has a result or a failure")
        return self._result

    def to_api_error(self, error: BaseException) -> ApiError:
        """Return the client's error for any exception that ended the call."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, asyncio.CancelledError):
            if self.cancel_reason is CancelReason.REQUESTED:
                return Cancelled("The call was cancelled; nothing was charged.")
            if self.cancel_reason is CancelReason.BY_OPERATOR:
                return Cancelled("An operator cancelled the call; nothing was charged.", code="cancelled_by_operator")
            return ServerStopping("The call was stopped before its end; nothing was charged. Please send it again.", 2)
        return EngineFailure(f"Something went wrong on the server (call {self.call.id}); nothing was charged.")

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, ApiError):
            log.error("call failed", call=self.call.id, exc_info=error)
        self.end(task.result() if error is None else self.to_api_error(error))


class ActiveCalls(ActiveJobs[ActiveCall]):
    """Registry of image calls."""
