"""Kills a worker that is stuck: it does not answer, or none of its jobs makes progress."""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from pipelines.protocol.messages import Ping
from server.backends.pending_job import PendingJob
from server.backends.transport import Transport

log = structlog.stdlib.get_logger("darkroom.engine")

HEARTBEAT_S = 10.0  # at most, from one question whether the worker answers to the next
SILENCE_S = 300.0  # longer than any forward pass, decode or compilation takes
STUCK_GRACE_S = 30.0  # without an event for its time limit and this, a job is stuck in native code


class Watchdog:
    """Watches one worker after another. `pending` are the host's jobs; `is_up` says whether the worker has started,
    which has no time limit. Times are of the monotonic clock."""

    def __init__(self, silence_s: float, pending: Mapping[str, PendingJob], is_up: Callable[[], bool]) -> None:
        self._silence_s = silence_s
        self._pending = pending
        self._is_up = is_up
        self.last_message_at = 0.0  # of the worker
        self.last_event_at = 0.0  # of any job

    async def watch(self, transport: Transport, name: str) -> None:
        """Ask whether the worker answers, and kill it when it is stuck."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(min(self._silence_s / 8, HEARTBEAT_S))
            transport.send([Ping()])
            stalled = time.monotonic() - began > self._silence_s / 2  # this process itself was suspended
            if not self._is_up() or stalled:
                continue
            if stuck := self._stuck(time.monotonic()):
                log.error("killing a worker", worker=name, pid=transport.pid, reason=stuck)
                transport.kill()
                return

    def _stuck(self, now: float) -> str | None:
        """Return why the worker is stuck; None if it is not. A preempted job has fewer events, but it has some."""
        started = [pending for pending in self._pending.values() if pending.started]
        if now - self.last_message_at > self._silence_s:
            return "it does not answer"
        if started and now - self.last_event_at > self._silence_s:
            return "none of its jobs makes progress"
        if any(now - pending.last_event_at > pending.job.time_limit_s + STUCK_GRACE_S for pending in started):
            return "a job makes no progress"
        return None
