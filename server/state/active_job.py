"""The common part of image calls and responses while they run: an event log, an admission, an end; and their registry.

A request is matched to a job by its Idempotency-Key, or by its fingerprint (an equal body).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from server.accounts.calls import CallId
from server.errors import ApiError
from server.state.expected_retries import CallIdentity
from server.state.tasks import FOREVER, CancelReason
from server.telemetry.call_trace import CLIENT_LEFT, CallTrace, current_trace

EventT = TypeVar("EventT")
JobT = TypeVar("JobT", bound="ActiveJob[Any]")


class ActiveJob(ABC, Generic[EventT]):
    """One job and its events so far. Any number of clients follow it, from any event on. Without one it runs on for
    `grace_s` seconds, then it is cancelled. Everything on one event loop."""

    counts_towards_limit = True  # among the calls that its key may have at once

    def __init__(self, call: CallId, grace_s: float, *, replayed: bool) -> None:
        self.call = call
        self.replayed = replayed  # it ended before, and is read from the database
        self.created_at = time.time()
        self.events: list[EventT] = []
        self.failure: ApiError | None = None
        self.record_arrival: Callable[[], Awaitable[object]] | None = None
        self._changed = asyncio.Event()
        self.cancel_reason: CancelReason | None = None
        self._grace_s = grace_s
        self._task: asyncio.Task[Any] | None = None
        self._listeners = 0
        self.was_followed = False  # a client has been attached
        self.in_background = False  # its client was told to come back for the result
        self.answered = False  # its answer, or the word to come back for it, has arrived whole at a client
        self._when_left: list[Callable[[], object]] = []
        self._grace_timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def done(self) -> bool:
        """Return whether nothing more will happen."""

    @property
    @abstractmethod
    def admitted(self) -> bool:
        """Return whether the request is valid and has its place: its answer begins with status 200."""

    @property
    def joinable_by_key(self) -> bool:
        """Return whether a request with the same Idempotency-Key may join it."""
        return not self.cancelled

    @property
    def joinable_by_fingerprint(self) -> bool:
        """Return whether an equal request may join it: not if its client asks for it by its Idempotency-Key."""
        return not self.cancelled and self.call.idempotency_key is None

    async def confirm_arrival(self) -> None:
        """Record that a client has the whole answer, or knows where to ask for it."""
        self.answered = True
        if self.record_arrival is not None:
            await self.record_arrival()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the work in a task of the server's. However the task ends, the job ends."""
        task = self._task = asyncio.create_task(work, name=self.call.id)
        task.add_done_callback(self._on_task_done)
        task.add_done_callback(self._delete)
        return task

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the job's task has ended."""
        if self._task is not None:
            self._task.add_done_callback(lambda _: callback())
        elif self.done:
            callback()

    async def wait_admitted(self) -> None:
        """Wait until the status of an answer is known. Raises ApiError if the job failed before."""
        while not (self.admitted or self.done):
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    async def wait_done(self) -> None:
        """Wait until the job has ended. A waiter that is cancelled does not cancel the job."""
        while not self.done:
            await self._changed.wait()

    async def cancel_and_wait(self, *, by_operator: bool = False) -> None:
        """Cancel the job for its client or an operator, and wait until it has ended."""
        self.cancel(CancelReason.BY_OPERATOR if by_operator else CancelReason.REQUESTED)
        await self.wait_done()

    async def follow(self, after: int = -1) -> AsyncIterator[EventT]:
        """Yield every event after the one with that index, as it comes, until the job ends."""
        sent = max(0, after + 1)
        while True:
            for event in self.events[sent:]:
                sent += 1
                yield event
            if self.done:
                return
            if sent >= len(self.events):
                await self._changed.wait()

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel` was called. Images that were stored and charged before remain."""
        return self.cancel_reason is not None

    @property
    def has_listeners(self) -> bool:
        """Return whether a client is attached."""
        return self._listeners > 0

    @property
    def has_lost_client(self) -> bool:
        """Return whether the clients that were attached have left without the whole answer."""
        return self.was_followed and not self.has_listeners and not self.answered

    def when_left(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever the last client has left."""
        self._when_left.append(callback)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Attach a client while this is entered."""
        self._listeners += 1
        self.was_followed = True
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                for callback in tuple(self._when_left):
                    callback()
                if not self.done:
                    self._start_grace()

    def detach(self) -> None:
        """Let the task go on without listeners from now on, until its end."""
        self.in_background = True
        self._grace_s = FOREVER

    def cancel(self, reason: CancelReason = CancelReason.REQUESTED) -> None:
        """Cancel the task at its next await."""
        self.cancel_reason = reason
        if self._task is not None and not self.done:
            self._task.cancel()

    def _start_grace(self) -> None:
        if self._grace_s <= 0:
            self.cancel(CancelReason.ABANDONED)
        elif self._grace_s < FOREVER:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self._grace_s, self.cancel, CancelReason.ABANDONED)

    @abstractmethod
    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        """End the job if its work did not."""

    def _delete(self, task: asyncio.Task[Any]) -> None:
        """Let go of the task, and of the values that the frames of its failure still hold, such as a body: they know
        this job, which knows its failure, and Python's collector finds such a circle only many bodies later."""
        self._task = None
        error = None if task.cancelled() else task.exception()
        while error is not None:
            error.__traceback__ = None
            error = error.__cause__ or error.__context__

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class ActiveJobs(Generic[JobT]):
    """Registry of the jobs of one kind that have not ended, in the order in which they began; and of ended ones whose
    answers are on their way."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobT] = {}
        self._answering: dict[str, JobT] = {}
        self._looking: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> tuple[JobT, ...]:
        """Return the jobs of every key."""
        return tuple(self._jobs.values())

    def ids(self) -> frozenset[str]:
        """Return the ids of all running jobs."""
        return frozenset(self._jobs)

    def start(self, job: JobT, work: Coroutine[Any, Any, Any]) -> JobT:
        """Run the job, keep it in the registry until it has ended, and return it."""
        self._jobs[job.call.id] = job
        trace = current_trace()
        trace.job = trace.job or job.call.id  # a nested call is a part of its response's
        job.begin(work).add_done_callback(lambda _: self._end(job))
        job.when_done(partial(_trace_end, trace, job, trace.open()))
        return job

    def keep_answering(self, job: JobT) -> None:
        """Find an ended job by its fingerprint, until its last client has left."""
        self._answering[job.call.id] = job
        job.when_left(partial(self._answering.pop, job.call.id, None))

    def _end(self, job: JobT) -> None:
        self._jobs.pop(job.call.id, None)
        if job.has_listeners:
            self.keep_answering(job)

    def find(self, job_id: str, key_id: str) -> JobT | None:
        """Return the job with this id, if it belongs to this key."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.call.key_id == key_id else None

    def find_keyed(self, key_id: str, endpoint: str, idempotency_key: str) -> JobT | None:
        """Return the job that an Idempotency-Key names, None if it does not run."""
        for job in self._jobs.values():
            call = job.call
            named = (call.key_id, call.endpoint, call.idempotency_key) == (key_id, endpoint, idempotency_key)
            if named and job.joinable_by_key:
                return job
        return None

    def find_equal(self, identity: CallIdentity) -> list[JobT]:
        """Return the jobs that a request with an equal body may be for, those whose answers are on their way first."""
        jobs = (*self._answering.values(), *self._jobs.values())
        return [job for job in jobs if job.call.identity == identity and job.joinable_by_fingerprint]

    def look_up_lock(self, key_id: str, retry_key: str) -> asyncio.Lock:
        """Return the lock to hold while a request with this Idempotency-Key or fingerprint looks for an earlier one and
        may start."""
        return self._looking.setdefault((key_id, retry_key), asyncio.Lock())

    def count(self, key_id: str) -> int:
        """Return how many jobs of this key count towards its limit."""
        mine = (job for job in self._jobs.values() if job.call.key_id == key_id)
        return sum(job.counts_towards_limit and not job.done for job in mine)

    async def stop(self) -> None:
        """Cancel every job, and wait until each has recorded its end."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel(CancelReason.SHUTDOWN)
        for job in jobs:
            await job.wait_done()


def _trace_end(trace: CallTrace, job: ActiveJob[Any], close: Callable[[], None]) -> None:
    """Record in the trace how the job ended, which an answer that had begun, or a client that had left, could not
    show."""
    if trace.job == job.call.id:
        trace.status, trace.code = 200, None
        if job.failure is not None:
            trace.status = job.failure.status
            trace.fail(job.failure.label, job.failure.message, job.failure.param)
        if job.cancel_reason is CancelReason.ABANDONED:
            trace.status = CLIENT_LEFT
            trace.fail("client_left")
    close()
