"""The jobs that run and wait on this server, for operators and for its keys: listed, watched, cancelled."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from pipelines.protocol.messages import WorkerMemory
from server.accounts.audit import record_change
from server.accounts.db import Database
from server.backends.engine_host import EngineHost
from server.errors import NotFound
from server.flows.operators.grid_jobs import GridJobs
from server.flows.operators.reports import key_names
from server.flows.operators.sleep import longest_wake_s
from server.parts import Running
from server.schemas.status import MemoryReport, QueuedJob, QueueSnapshot, WorkerReport
from server.state.active_calls import ActiveCall
from server.state.active_chats import ActiveChat
from server.state.active_responses import ActiveResponse

MEMORY_STEP = 16 * 2**20
WATCH_S = 0.5  # between two looks at the queue

Job = ActiveCall | ActiveResponse | ActiveChat


class JobQueue:
    """Image calls, responses, chats and comparison grids."""

    def __init__(
        self, running: Running, database: Database, workers: Callable[[], Sequence[WorkerReport]], grids: GridJobs
    ) -> None:
        self._running = running
        self._grids = grids
        self._database = database
        self._workers = workers

    async def snapshot(self) -> QueueSnapshot:
        """Return the jobs in the order in which they began, and the workers."""
        names = await self._database.in_reader(key_names, self._database)
        jobs = [*(self._describe(job, names) for job in self._jobs()), *self._grids.queued()]
        return QueueSnapshot(jobs=sorted(jobs, key=lambda job: job.created_at), workers=[*self._workers()])

    async def watch(self) -> AsyncIterator[QueueSnapshot]:
        """Yield the queue now, and whenever it has changed, until the server stops."""
        shown: QueueSnapshot | None = None
        while not self._running.drain.draining:
            snapshot = await self.snapshot()
            if snapshot != shown:
                yield snapshot
                shown = snapshot
            await asyncio.sleep(WATCH_S)

    async def jobs_of(self, key_id: str) -> list[QueuedJob]:
        """Return the jobs of one key, as it sees them itself."""
        return [job for job in (await self.snapshot()).jobs if job.key_id == key_id]

    async def cancel(self, job_id: str, *, by: str) -> None:
        """End a job; it is not charged, unless it was already. Raises NotFound."""
        if await self._grids.cancel(job_id):
            await self._database.in_writer(record_change, self._database, by, "job.cancel", job_id)
            return
        job = self._find(job_id)
        await job.cancel_and_wait(by_operator=True)
        details = {"key_id": job.call.key_id, "endpoint": job.call.endpoint}
        await self._database.in_writer(record_change, self._database, by, "job.cancel", job_id, **details)

    async def cancel_own(self, job_id: str, key_id: str) -> None:
        """Cancel a job for the key whose job it is, and wait for its end."""
        await self._find(job_id, key_id).cancel_and_wait()

    def _find(self, job_id: str, key_id: str | None = None) -> Job:
        running = {job.call.id: job for job in self._jobs()}
        job = running.get(job_id)
        if job is None or key_id not in {None, job.call.key_id}:
            message = f"There is no job '{job_id[:60]}' that runs or waits on this server."
            raise NotFound(message, param="id", code="job_not_found")
        return job

    def _jobs(self) -> list[Job]:
        running = self._running
        jobs: list[Job] = [*running.calls.all(), *running.responses.all(), *running.chats.running()]
        return sorted((job for job in jobs if not job.done), key=lambda job: job.created_at)

    def _describe(self, job: Job, names: Mapping[str, str]) -> QueuedJob:
        shown = QueuedJob(
            id=job.call.id,
            kind="response",
            key_id=job.call.key_id,
            key_name=names.get(job.call.key_id, ""),
            endpoint=job.call.endpoint,
            model=None,
            state="running",
            created_at=job.created_at,
        )
        if isinstance(job, ActiveChat):
            shown.kind, shown.model, shown.state = "chat", job.model, "running" if job.admitted else "queued"
            shown.tokens, shown.service_tier = job.tokens, job.tier
        elif isinstance(job, ActiveCall):
            shown.kind, shown.state = "image", job.state
            shown.size = job.shape.size if job.shape else None
            if estimate := self._running.backlog.estimate_job(job.call.id):
                shown.model, shown.service_tier = estimate.model, estimate.tier
                shown.position, shown.estimated_s = estimate.position, estimate.estimated_s
            if job.progress:
                shown.step, shown.steps = job.progress.step, job.progress.steps
        else:
            shown.model, shown.service_tier = job.record.echo["model"], job.record.echo["service_tier"]
            shown.state = "queued" if job.status == "queued" else "running"
        return shown


def worker_reports(hosts: Sequence[EngineHost[Any, Any]]) -> list[WorkerReport]:
    """Return a report of each host that has, or has had, a worker."""
    return [
        WorkerReport.describe(
            host,
            device=host.status.device,
            pid=host.status.pid,
            problem=host.status.problem,
            sleep=host.status.sleep,
            memory=_memory(host.status.memory),
            wake_s=longest_wake_s(host),
        )
        for host in hosts
        if host.status.device or host.status.pid or host.restarts
    ]


def _memory(memory: WorkerMemory | None) -> MemoryReport | None:
    """Return the memory that the latest heartbeat reported, in steps of 16 MiB: less is no change of the queue."""
    if memory is None:
        return None
    gpu = memory.gpu
    return MemoryReport(
        host_bytes=_whole(memory.host_bytes),
        gpu_bytes=_whole(gpu.allocated_bytes) if gpu else None,
        gpu_used_bytes=_whole(gpu.total_bytes - gpu.free_bytes) if gpu else None,
        gpu_total_bytes=gpu.total_bytes if gpu else None,
    )


def _whole(bytes_: int) -> int:
    return bytes_ // MEMORY_STEP * MEMORY_STEP
