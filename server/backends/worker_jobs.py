"""The jobs of one host's workers: those that wait or run, and those that were cancelled before the worker knew them."""

from collections.abc import Callable

from pipelines.protocol.images import Failed, Movable
from pipelines.protocol.messages import AnyEvent, Cancel, Job, Spec, ToWorker
from server.backends.job_events import TERMINAL_EVENTS, JobSpeeds, PendingJob


class WorkerJobs:
    """The jobs of a host. `send` tells the worker something, if there is one; `on_event` hears of each event of a job
    that waits or runs."""

    def __init__(self, send: Callable[[ToWorker], None], on_event: Callable[[PendingJob, AnyEvent], None]) -> None:
        self.pending: dict[str, PendingJob] = {}
        self.speeds = JobSpeeds()
        self._send = send
        self._on_event = on_event
        # Before the worker acknowledged them; Cancel is sent when it does. Until their end it may read their images.
        self._cancelled_early: dict[str, Job] = {}

    @property
    def are_settled(self) -> bool:
        """Return whether no job needs the worker."""
        return not self.pending and not self._cancelled_early

    @property
    def waiting_for(self) -> list[Spec]:
        """Return the checkpoints of the jobs that have not started."""
        return [pending.job.checkpoint for pending in self.pending.values() if not pending.started]

    def add(self, job: Job) -> PendingJob:
        """Add a job that the worker is to be sent."""
        pending = self.pending[job.id] = PendingJob(job)
        return pending

    def cancel(self, job_id: str, *, is_sent: bool) -> None:
        """Stop a job within one step. Ids that are not pending are ignored."""
        pending = self.pending.get(job_id)
        if pending is None:
            return
        if pending.acknowledged:
            self._send(Cancel(job_id))
        else:
            if is_sent:
                self._cancelled_early[job_id] = pending.job
            self.deliver(job_id, Failed("cancelled", "The job was cancelled; nothing was charged."))

    def deliver(self, job_id: str, event: AnyEvent) -> None:
        """Pass an event on to the reader of the job's events, and learn from it how long jobs take."""
        pending = self.pending.get(job_id)
        if pending is None:
            if isinstance(event, TERMINAL_EVENTS):
                self._cancelled_early.pop(job_id, None)
            elif job_id in self._cancelled_early:
                self._send(Cancel(job_id))
            return
        pending.record(event)
        self._on_event(pending, event)
        if isinstance(event, TERMINAL_EVENTS):
            del self.pending[job_id]
        self.speeds.record(pending.job, event)

    def fail_all(self, message: str, movable: Movable | None = None) -> None:
        """Fail all jobs. Other workers may run them, if they are `movable`."""
        self._cancelled_early.clear()
        for job_id in list(self.pending):
            self.deliver(job_id, Failed("worker_died", message, movable=movable))
