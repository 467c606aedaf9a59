"""The course of a job on a worker, event by event: what its caller reads, and what its host learns by it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeVar

from pipelines.checkpoints.work.estimate import is_duration
from pipelines.protocol.chat import Admitted, ChatEvent, ChatFinished, ChatJob, CountFinished
from pipelines.protocol.classify import Classified, ClassifyEvent
from pipelines.protocol.images import Event, Failed, Finished, ImageJob, Progress, Queued, Started
from pipelines.protocol.messages import AnyEvent, Job, JobKind, Spec
from server.backends.transport import NO_MEMORY

TERMINAL_EVENTS = (Finished, ChatFinished, CountFinished, Classified, Failed)
WAKE_MARGIN = 5.0  # by which a worker may wake more slowly than is estimated
INITIAL_JOB_S: Final = 10.0  # assumed duration of a job until one has finished
SMOOTHING: Final = 0.2  # weight of a new job's duration
EventT = TypeVar("EventT", Event, ChatEvent, ClassifyEvent)


class QueueFull(Exception):
    """The queue is full; `retry_after_s` estimates when it is not."""

    def __init__(self, kind: JobKind, retry_after_s: float) -> None:
        super().__init__(f"the {kind} queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class JobEvents(AsyncIterator[EventT], Generic[EventT]):
    """A job's events up to its last. Unlike a generator's, its iteration can go on after a cancelled `anext`."""

    def __init__(self, events: asyncio.Queue[EventT], wake_s: float = 0.0) -> None:
        self._events: asyncio.Queue[EventT] = events
        self.wake_s = wake_s  # estimated, of a worker that had to be woken for it
        self.move: Callable[[Failed], JobEvents[EventT] | None] | None = None  # gives a failed job to another worker
        self._submitted_at = time.monotonic()
        self.queue_s: float | None = None  # until it started on the device; a chat's prompt is built before
        self.ended = False

    @classmethod
    def failed(cls, event: EventT) -> Self:
        """Return the events of a job that no worker gets."""
        events: asyncio.Queue[EventT] = asyncio.Queue()
        events.put_nowait(event)
        return cls(events)

    def limit_s(self, time_limit_s: float) -> float:
        """Return how long to wait for the job's end, in seconds from its submission: its time limit, and the time that
        the worker may need to wake."""
        return time_limit_s + WAKE_MARGIN * self.wake_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventT:
        if self.ended:
            raise StopAsyncIteration
        while (moved := self._moved(event := await self._events.get())) is not None:
            self._events, self.move = moved._events, moved.move or self.move
        if isinstance(event, Started) and self.queue_s is None:  # one that moves starts again
            self.queue_s = time.monotonic() - self._submitted_at
        self.ended = isinstance(event, TERMINAL_EVENTS)
        return event

    def _moved(self, event: EventT) -> "JobEvents[EventT] | None":
        """Return the events of the job on another worker, if this one could not run it and there is another."""
        if not isinstance(event, Failed) or event.movable is None or self.move is None:
            return None
        if self.queue_s is not None and event.movable != "larger":
            return None
        try:
            return self.move(event)
        except QueueFull as error:
            message = f"The server is busy: {error}."
            return JobEvents.failed(Failed("queue_full", message, retry_after_s=error.retry_after_s))


@dataclass(slots=True)
class PendingJob:
    """A job that waits or runs on a worker, with what its events have reported so far."""

    job: Job
    events: asyncio.Queue[AnyEvent] = field(default_factory=asyncio.Queue)
    acknowledged: bool = False  # the worker has sent an event of it
    started: bool = False
    admitted: bool = False  # a chat's prompt is built
    on_device: bool = False
    waits: bool = False  # a chat that is ready, for its turn on the device, or gave it up: that may take any time
    share_left: float = 1.0  # of an image job's steps
    last_event_at: float = 0.0  # by the monotonic clock

    def record(self, event: AnyEvent) -> None:
        """Record an event, and pass it on to the reader of the job's events."""
        self.acknowledged = True
        self.admitted = self.admitted or isinstance(event, Admitted)
        self.waits = self.admitted and isinstance(event, Queued | Admitted)
        if isinstance(event, Started):
            self.on_device = self.admitted or not isinstance(self.job, ChatJob)
        self.started = self.started or isinstance(event, Started | Admitted)
        if isinstance(event, Progress):
            self.share_left = 1 - event.step / event.steps
        self.last_event_at = time.monotonic()
        self.events.put_nowait(event)


class JobSpeeds:
    """`job_s` is how long a job runs, smoothed; `unit_s` the duration of a unit of work of an image checkpoint
    (pipelines.checkpoints.work.estimate), in its last job."""

    def __init__(self) -> None:
        self.job_s = INITIAL_JOB_S
        self.unit_s: dict[Spec, float] = {}

    def record(self, job: Job, event: AnyEvent) -> None:
        """Learn from an event of a job how long jobs and their units of work take."""
        if isinstance(event, Finished) and isinstance(job, ImageJob) and is_duration(event.unit_s):
            self.unit_s[job.checkpoint] = event.unit_s
        if isinstance(event, Finished | ChatFinished | Classified) and math.isfinite(event.run_s):
            self.job_s += SMOOTHING * (event.run_s - self.job_s)

    def keep(self, specs: Collection[Spec]) -> None:
        """Forget all other checkpoints than these."""
        self.unit_s = {spec: unit_s for spec, unit_s in self.unit_s.items() if spec in specs}


def death_message(kind: JobKind, reason: str, *, has_device: bool = True) -> str:
    """Return what the callers of a dead worker's jobs are told. `reason` says why it died."""
    worker = f"The {kind} worker"
    if not has_device:
        return f"{worker} has no device to compute on; nothing was charged. Try again later."
    again = "while it was processing this job; nothing was charged. Please send the request again"
    if reason == NO_MEMORY:
        return f"{worker} died: out of memory {again}. If that fails too, try a smaller size or fewer references."
    return f"{worker} died {again}."
