"""Swaps, undos and reloads as jobs: they go on without their client, and tell how far they are."""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from server.accounts.audit import record_change
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.errors import ApiError, EngineFailure, NotFound
from server.flows.catalog.switch import CatalogDiff, Send
from server.flows.catalog.update import CatalogUpdater
from server.schemas.admin import Action, CatalogChange, CatalogJob, Stage
from server.state.tasks import BackgroundTasks

log = structlog.stdlib.get_logger("darkroom.swap")

MAX_JOBS = 50  # that are remembered


@dataclass(slots=True)
class _Job:
    """One change. `outcome` is None while it runs."""

    id: str
    action: Action
    model: str | None
    checkpoint: str | None
    operator: str
    created_at: float
    stage: Stage = "waiting"
    ended_at: float | None = None
    outcome: CatalogDiff | ApiError | None = None
    task: asyncio.Task[None] = field(init=False)

    def send(self, stage: Stage) -> None:
        self.stage = stage


class CatalogJobs:
    """The changes since the server's start. An id begins with that of the server, so that others know whose it is."""

    def __init__(
        self, updater: CatalogUpdater, database: Database, background: BackgroundTasks, gateways: GatewayStore
    ) -> None:
        self._updater = updater
        self._database = database
        self._background = background
        self._gateways = gateways
        self._jobs: deque[_Job] = deque(maxlen=MAX_JOBS)

    def swap(self, model: str, checkpoint: str, *, keep_settings: bool, by: str) -> str:
        """Begin a swap; returns the job's id."""
        job = self._new("swap", by, model, checkpoint)
        return self._begin(job, lambda send: self._updater.swap(model, checkpoint, send, keep_settings=keep_settings))

    def undo(self, *, by: str) -> str:
        """Begin to take back the latest swap; returns the job's id."""
        return self._begin(self._new("undo", by), self._updater.undo)

    def reload(self, *, by: str) -> str:
        """Begin to read the catalog's files again; returns the job's id."""
        return self._begin(self._new("reload", by), self._updater.reload)

    async def wait(self, job_id: str) -> CatalogDiff:
        """Wait for the end of a job, and return the changes that it made. Raises the job's ApiError."""
        job = self._find(job_id)
        await asyncio.wait({job.task})
        if isinstance(job.outcome, CatalogDiff):
            return job.outcome
        raise job.outcome or EngineFailure("The change was cut off by the server's end.")

    def show(self, job_id: str) -> CatalogJob:
        """Return the state of a job. Raises NotFound."""
        return _describe(self._find(job_id))

    async def find_owner(self, job_id: str) -> str | None:
        """Find the other server that makes the change; None for changes of this one."""
        others = await self._gateways.in_reader(self._gateways.others)
        return next((other.owner for other in others if job_id.startswith(_prefix(other.owner))), None)

    def list_all(self) -> list[CatalogJob]:
        """List all jobs, newest first."""
        return [_describe(job) for job in reversed(self._jobs)]

    def _new(self, action: Action, by: str, model: str | None = None, checkpoint: str | None = None) -> _Job:
        return _Job(
            f"{_prefix(self._gateways.owner)}{uuid.uuid4().hex[:12]}", action, model, checkpoint, by, time.time()
        )

    def _begin(self, job: _Job, change: Callable[[Send], Awaitable[CatalogDiff]]) -> str:
        self._jobs.append(job)
        job.task = self._background.spawn(self._run(job, change))
        return job.id

    async def _run(self, job: _Job, change: Callable[[Send], Awaitable[CatalogDiff]]) -> None:
        try:
            diff = await change(job.send)
            details: dict[str, Any] = {"checkpoint": job.checkpoint, "changed": [*diff.changed], "added": [*diff.added]}
            details |= {"removed": [*diff.removed], "saved": diff.saved}
            target, action = job.model or "catalog", f"catalog.{job.action}"
            await self._database.in_writer(record_change, self._database, job.operator, action, target, **details)
            job.outcome = diff
        except ApiError as error:
            job.outcome = error
        except Exception:
            log.exception("a change of the catalog failed", action=job.action)
            job.outcome = EngineFailure("Something went wrong on the server; its log says what.")
        job.stage, job.ended_at = "done", time.time()

    def _find(self, job_id: str) -> _Job:
        job = next((job for job in self._jobs if job.id == job_id), None)
        if job is None:
            message = f"There is no change '{job_id[:60]}' since this server's start."
            raise NotFound(message, param="id", code="job_not_found")
        return job


def _prefix(owner: str) -> str:
    return f"swap_{owner[:8]}"


def _describe(job: _Job) -> CatalogJob:
    failed, done = isinstance(job.outcome, ApiError), isinstance(job.outcome, CatalogDiff)
    return CatalogJob.describe(
        job,
        state="failed" if failed else "succeeded" if done else "running",
        change=CatalogChange.describe(job.outcome) if done else None,
        error=job.outcome.body()["error"] if isinstance(job.outcome, ApiError) else None,
    )
