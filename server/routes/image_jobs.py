"""/v1/images/jobs: list, show and cancel image calls."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from server.http.deps import Caller, ServicesDep, query_flag
from server.http.openapi import errors
from server.http.queries import PageDep, choice
from server.schemas.image_jobs import ImageJobList, ImageJobState, JobState

router = APIRouter(prefix="/v1/images/jobs")

STATES: tuple[JobState, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
JobId = Annotated[str, Path(description="The id in the `x-darkroom-job` header of the call's answer.")]
InState = Annotated[JobState | None, choice("state", STATES), Query(description="Only calls in this state.")]
WithPreviews = Annotated[str, Query(description="`true` for the newest preview of each image.")]


@router.get("", response_description="A page of calls.", responses=errors(400, 404))
async def list_jobs(key: Caller, services: ServicesDep, page: PageDep, state: InState = None) -> ImageJobList:
    """List image calls.

    Returns a page of the key's image calls, in the background or not, without their results.
    """
    return await services.images.jobs.list(key, state, page)


@router.get("/{job_id}", response_description="The state of the call.", responses=errors(400, 404))
async def show_job(job_id: JobId, key: Caller, services: ServicesDep, previews: WithPreviews = "") -> ImageJobState:
    """Show an image call.

    Tells whether a call is queued or running, its place in the queue, how long it should take, how far it is, and how
    it ended. Only the key that made the call can see it.
    """
    return await services.images.jobs.describe(key, job_id, previews=query_flag("previews", previews))


@router.post("/{job_id}/cancel", response_description="The state of the call after that.", responses=errors(404, 409))
async def cancel_job(job_id: JobId, key: Caller, services: ServicesDep) -> ImageJobState:
    """Cancel an image call.

    Ends a call that is queued or running; it is not charged. One that has ended stays as it is.
    """
    return await services.images.jobs.cancel(key, job_id)
