"""Kills a worker that is stuck: it does not answer, or none of its jobs makes progress."""

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import dropwhile

import structlog

from pipelines.protocol.chat import Admitted, ChatJob, CountJob
from pipelines.protocol.images import Started
from pipelines.protocol.messages import AnyEvent, Ping, Spec
from server.backends.job_events import TERMINAL_EVENTS, PendingJob
from server.backends.transport import Transport

log = structlog.stdlib.get_logger("darkroom.engine")

HEARTBEAT_S = 10.0  # at most, from one question whether the worker answers to the next
SILENCE_S = 300.0  # longer than any forward pass, decode or compilation takes
STUCK_GRACE_S = 30.0  # without an event for its time limit and this, a job is stuck in native code


class Watchdog:
    """Watches one worker after another. `pending` are the host's jobs; `is_up` says whether the worker has started,
    which has no time limit; `is_loaded` whether it has loaded a checkpoint. Times are of the monotonic clock."""

    def __init__(
        self,
        silence_s: float,
        pending: Mapping[str, PendingJob],
        is_up: Callable[[], bool],
        is_loaded: Callable[[Spec], bool],
    ) -> None:
        self._silence_s = silence_s
        self._pending = pending
        self._is_up = is_up
        self._is_loaded = is_loaded
        self.last_message_at = 0.0  # of the worker
        self._last_event_at = 0.0  # of any job
        self.stuck: str | None = None  # why the worker was killed that was watched last

    def record_event(self, moved: PendingJob, event: AnyEvent) -> None:
        """Record a job's event. If the job has moved on, those behind it wait for one less."""
        self._last_event_at = moved.last_event_at
        if isinstance(event, (Started, Admitted, *TERMINAL_EVENTS)):
            for waiting in dropwhile(lambda job: job is not moved, self._pending.values()):
                if not waiting.started:
                    waiting.last_event_at = self._last_event_at

    def record_loaded(self, spec: Spec) -> None:
        """Record that a checkpoint was loaded: jobs that waited for it now wait for their prompts."""
        self._last_event_at = time.monotonic()
        for waiting in self._pending.values():
            if waiting.job.checkpoint == spec:
                waiting.last_event_at = self._last_event_at

    async def watch(self, transport: Transport, name: str) -> None:
        """Ask whether the worker answers, and kill it when it is stuck."""
        self.stuck = None
        while True:
            began = time.monotonic()
            await asyncio.sleep(min(self._silence_s / 8, HEARTBEAT_S))
            transport.send([Ping()])
            stalled = time.monotonic() - began > self._silence_s / 2  # this process itself was suspended
            if not self._is_up() or stalled:
                continue
            if stuck := self._why_stuck(time.monotonic()):
                log.error("killing a worker", worker=name, pid=transport.pid, reason=stuck)
                transport.kill()
                self.stuck = stuck
                return

    def _why_stuck(self, now: float) -> str | None:
        """Return why the worker is stuck; None if it is not."""
        if now - self.last_message_at > self._silence_s:
            return "it does not answer"
        due = [pending for pending in self._pending.values() if self._is_due(pending)]
        if due and now - self._last_event_at > self._silence_s:
            return "none of its jobs makes progress"
        moving = [pending for pending in due if not pending.waits]
        if any(now - pending.last_event_at > pending.job.time_limit_s + STUCK_GRACE_S for pending in moving):
            return "a job makes no progress"
        return None

    def _is_due(self, pending: PendingJob) -> bool:
        """Return whether a job should make progress. A chat's prompt is built once its checkpoint is loaded, whatever
        runs on the device: one that was never admitted is due too."""
        if pending.started or not (pending.acknowledged and isinstance(pending.job, ChatJob | CountJob)):
            return pending.started
        return self._is_loaded(pending.job.checkpoint)
