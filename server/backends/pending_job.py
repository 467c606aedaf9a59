"""A job that was submitted to a worker and has not ended, and what its caller is told if the worker dies."""

import asyncio
import time
from dataclasses import dataclass, field

from pipelines.protocol.chat import Admitted, ChatJob
from pipelines.protocol.images import Progress, Started
from pipelines.protocol.messages import AnyEvent, Job, JobKind
from server.backends.transport import NO_MEMORY


@dataclass(slots=True)
class PendingJob:
    """A job that waits or runs on a worker, with what its events have reported so far."""

    job: Job
    events: asyncio.Queue[AnyEvent] = field(default_factory=asyncio.Queue)
    acknowledged: bool = False  # the worker has sent an event of it
    started: bool = False
    admitted: bool = False  # a chat's prompt is built
    on_device: bool = False
    share_left: float = 1.0  # of an image job's steps
    last_event_at: float = 0.0  # by the monotonic clock

    def record(self, event: AnyEvent) -> None:
        """Record an event, and pass it on to the reader of the job's events."""
        self.acknowledged = True
        self.admitted = self.admitted or isinstance(event, Admitted)
        if isinstance(event, Started):
            self.on_device = self.admitted or not isinstance(self.job, ChatJob)
        self.started = self.started or isinstance(event, Started | Admitted)
        if isinstance(event, Progress):
            self.share_left = 1 - event.step / event.steps
        self.last_event_at = time.monotonic()
        self.events.put_nowait(event)


def death_message(kind: JobKind, no_device: str | None, ended: str | None) -> str:
    """Return what the callers of a dead worker's jobs are told: `no_device` and `ended` say why it died."""
    worker = f"The {kind} worker"
    if no_device is not None:
        return f"{worker} has no device to compute on; nothing was charged. Try again later."
    again = "while it was processing this job; nothing was charged. Please send the request again"
    if ended == NO_MEMORY:
        return f"{worker} died: out of memory {again}. If that fails too, try a smaller size or fewer references."
    return f"{worker} died {again}."
