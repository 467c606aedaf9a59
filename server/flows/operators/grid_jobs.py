"""Comparison grids as jobs: they go on without their client, stand in the queue, and can be cancelled."""

import asyncio
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import structlog

from server.errors import ApiError, Cancelled, EngineFailure, NotFound
from server.flows.operators.comparison_grid import ComparisonGrids, Recipe
from server.schemas.checkpoints import GridFailure, GridState
from server.schemas.status import QueuedJob

log = structlog.stdlib.get_logger("darkroom.grids")

MAX_JOBS = 8  # whose sheets are remembered: some megabytes each


@dataclass(slots=True)
class _Job:
    """One grid. `outcome` is None while it is drawn."""

    id: str
    recipe: Recipe
    operator: str
    created_at: float
    task: asyncio.Task[None] = field(init=False)
    drawn: int = 0
    outcome: bytes | ApiError | None = None

    @property
    def total(self) -> int:
        return len(self.recipe.columns) * len(self.recipe.rows)

    def record_image(self) -> None:
        self.drawn += 1


class GridJobs:
    """The latest comparison grids since the server's start."""

    def __init__(self, grids: ComparisonGrids) -> None:
        self._grids = grids
        self._jobs: deque[_Job] = deque(maxlen=MAX_JOBS)

    def begin(self, recipe: Recipe, *, by: str) -> str:
        """Begin to draw a grid; returns the job's id."""
        job = _Job(f"grid_{uuid.uuid4().hex[:24]}", recipe, by, time.time())
        self._jobs.append(job)
        job.task = asyncio.create_task(self._run(job))
        return job.id

    async def wait(self, job_id: str) -> bytes:
        """Wait for the sheet of a job, and cancel the job if its client leaves. Raises the job's ApiError."""
        await self._find(job_id).task
        return self.sheet(job_id)

    def show(self, job_id: str) -> GridState:
        """Return the state of a job. Raises NotFound."""
        return _describe(self._find(job_id))

    def sheet(self, job_id: str) -> bytes:
        """Return the sheet as a PNG. Raises NotFound while there is none, and the job's ApiError."""
        outcome = self._find(job_id).outcome
        if outcome is None:
            raise NotFound(f"The sheet of '{job_id}' is still drawn.", param="id", code="job_not_finished")
        if isinstance(outcome, ApiError):
            raise outcome
        return outcome

    def queued(self) -> list[QueuedJob]:
        """Return the grids that are drawn, as jobs of the queue."""
        return [_as_queued(job) for job in self._jobs if job.outcome is None]

    async def cancel(self, job_id: str) -> bool:
        """End a grid that is drawn, and wait for its end; returns False if there is none of this id."""
        job = next((job for job in self._jobs if job.id == job_id and job.outcome is None), None)
        if job is None:
            return False
        job.task.cancel()
        await asyncio.wait({job.task})
        return True

    async def _run(self, job: _Job) -> None:
        try:
            job.outcome = await self._grids.draw(job.recipe, job.record_image)
        except asyncio.CancelledError:
            job.outcome = Cancelled("The comparison was cancelled by an operator, or the server has stopped.")
        except ApiError as error:
            job.outcome = error
        except Exception:
            log.exception("a comparison grid failed", job=job.id)
            job.outcome = EngineFailure("Something went wrong on the server; its log says what.")

    def _find(self, job_id: str) -> _Job:
        job = next((job for job in self._jobs if job.id == job_id), None)
        if job is None:
            message = f"There is no comparison '{job_id[:60]}' since this server's start, or it is too long ago."
            raise NotFound(message, param="id", code="job_not_found")
        return job


def _describe(job: _Job) -> GridState:
    failure = job.outcome if isinstance(job.outcome, ApiError) else None
    ended: Literal["cancelled", "failed", "succeeded"]
    ended = "cancelled" if isinstance(failure, Cancelled) else "failed" if failure else "succeeded"
    state = "running" if job.outcome is None else ended
    return GridState.describe(job, state=state, error=GridFailure.describe(failure) if failure else None)


def _as_queued(job: _Job) -> QueuedJob:
    return QueuedJob(
        id=job.id,
        kind="grid",
        key_id="",
        key_name=job.operator,
        endpoint="admin.checkpoints.proof",
        model=", ".join(candidate.name for candidate in job.recipe.candidates),
        state="running" if job.drawn else "queued",
        created_at=job.created_at,
        step=job.drawn,
        steps=job.total,
        size=f"{job.recipe.width_px}x{job.recipe.height_px}",
    )
