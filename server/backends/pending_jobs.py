"""Jobs that a worker has and has not ended, and which of them should have made progress by now."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from pipelines.protocol.chat import ChatJob, CountJob
from pipelines.protocol.messages import AnyEvent, Job, Spec

STUCK_GRACE_S = 30.0  # without an event for its time limit and this, a job is stuck in native code, or lost


@dataclass(slots=True)
class PendingJob:
    """A job that was submitted and has not ended."""

    job: Job
    events: asyncio.Queue[AnyEvent] = field(default_factory=asyncio.Queue)
    acknowledged: bool = False  # the worker has sent an event of it
    started: bool = False
    admitted: bool = False  # a chat's prompt is built
    on_device: bool = False
    share_left: float = 1.0  # of an image job's steps
    last_event_at: float = 0.0  # by the monotonic clock; of a job that waits, also when one before it moved on

    def is_stuck(self, now: float) -> bool:
        """Return whether it had no event for longer than it may run."""
        return now - self.last_event_at > self.job.time_limit_s + STUCK_GRACE_S


def due_jobs(pending: Iterable[PendingJob], loaded: Collection[Spec]) -> list[PendingJob]:
    """Return the jobs that should make progress, where the worker has `loaded` these.

    A preempted job has fewer events, but it has some. A chat's prompt is built as soon as its checkpoint is loaded and
    the prompts before it are built, whatever runs on the device, so a chat that was never admitted is due too.
    """
    return [one for one in pending if one.started or (_is_chat(one) and one.job.checkpoint in loaded)]


def bring_nearer(pending: Mapping[str, PendingJob], job_id: str) -> None:
    """Note that the jobs behind this one wait for one less: it has an event just now."""
    behind = dropwhile(lambda one: one != job_id, pending)
    for waiting in (pending[one] for one in behind):
        if not waiting.started:
            waiting.last_event_at = pending[job_id].last_event_at


def _is_chat(pending: PendingJob) -> bool:
    return pending.acknowledged and isinstance(pending.job, ChatJob | CountJob)
