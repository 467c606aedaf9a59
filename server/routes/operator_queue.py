"""/admin/jobs, /admin/events and /admin/status: the running jobs, watched and cancelled. They need an admin key."""

import asyncio
import shutil
from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from sse_starlette import ServerSentEvent

from server.accounts.audit import record_change
from server.errors import Overloaded, StartError, StorageFailed
from server.flows.operators.backup import make_backup
from server.flows.operators.doctor import run_checks
from server.http import examples
from server.http.deps import ServicesDep
from server.http.openapi import errors, event_stream_of, returns
from server.http.operators import OperatorName, operator
from server.http.sse import event, event_stream
from server.routes.account import JobId
from server.schemas.status import BackupFile, CancelledJob, Disk, Findings, QueuedJobList, QueueSnapshot, ServerStatus
from server.services import Services

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])


@router.get("/jobs", response_description="The jobs.")
async def list_jobs(services: ServicesDep) -> QueuedJobList:
    """List jobs.

    Lists the image calls, the responses and the chats that run or wait on this server.
    """
    return QueuedJobList.of((await services.operations.job_queue.snapshot()).jobs)


@router.delete("/jobs/{job_id}", response_description="The job has ended.", responses=errors(404))
async def cancel_job(job_id: JobId, services: ServicesDep, by: OperatorName) -> CancelledJob:
    """Cancel a job.

    Ends any key's job that runs or waits on this server. Images that were charged already stay charged; nothing more is
    charged.
    """
    await services.operations.job_queue.cancel(job_id, by=by)
    return CancelledJob(id=job_id)


@router.get(
    "/events",
    response_description="The stream.",
    responses=returns(
        QueueSnapshot,
        media_type="text/event-stream",
        stream=event_stream_of(QueueSnapshot, examples=examples.QUEUE_EVENTS),
    ),
)
async def watch(services: ServicesDep) -> Response:
    """Watch the queue.

    Streams the jobs and the workers: everything at once, and again whenever something has changed, at most twice a
    second.
    """
    return event_stream(_events(services), services.settings.keepalive_s, {})


@router.get("/status", response_description="The server.")
async def status(services: ServicesDep) -> ServerStatus:
    """Show the server.

    Returns the version, the workers, the room on the disk, and the data that the server keeps.
    """
    settings = services.settings
    disk = await asyncio.to_thread(shutil.disk_usage, settings.home)
    return ServerStatus(
        version=services.telemetry.version,
        started_at=services.telemetry.started_at,
        draining=services.running.drain.draining,
        workers=(await services.operations.job_queue.snapshot()).workers,
        disk=Disk(free_bytes=disk.free, total_bytes=disk.total),
        database=services.stores.database.url.get_backend_name(),
        policy=str(settings.moderation) if settings.moderation else None,
        keep_prompts=settings.keep_prompts,
        calls_keep_days=settings.calls_keep_days,
        results_keep_days=settings.results_keep_days,
        storage_problem=services.operations.storage_sweep.problem,
    )


@router.get("/doctor", response_description="What was found.")
async def doctor(services: ServicesDep) -> Findings:
    """Examine the machine.

    Checks settings, driver, CUDA, memory, disk, port, permissions, database, catalog and egress, as `darkroom doctor`
    does.
    """
    return Findings(data=await asyncio.to_thread(run_checks, services.settings))


@router.post("/backup", response_description="The file.")
async def backup(services: ServicesDep, by: OperatorName) -> BackupFile:
    """Make a backup.

    Writes database, images, catalog and secrets into one file in the folder `backups` of the server's home.
    """
    settings, database = services.settings, services.stores.database
    try:
        made = await asyncio.to_thread(make_backup, settings, settings.home / "backups")
    except StartError as error:
        raise Overloaded(f"No backup was made: {error}", 120, code="backup_failed") from error
    except OSError as error:
        raise StorageFailed(str(error)) from error
    await database.in_writer(record_change, database, by, "backup.make", str(made.path), pictures=made.images)
    return BackupFile(
        path=str(made.path),
        bytes=made.size_bytes,
        pictures=made.images,
        schema_version=made.schema,
        left_out=[*made.left_out],
    )


async def _events(services: Services) -> AsyncIterator[ServerSentEvent]:
    async for snapshot in services.operations.job_queue.watch():
        yield event(snapshot.model_dump(), snapshot.type)
