"""/v1/images/jobs: list, show and cancel image calls."""

from fastapi import APIRouter

from server.accounts.paging import Page
from server.http.deps import Caller, ServicesDep, query_flag
from server.http.openapi import answer, openapi, parameter
from server.http.paging import page_parameters, read_limit, read_order
from server.schemas.image_jobs import ImageJobList, ImageJobState, JobState
from server.schemas.validation import one_of

router = APIRouter(prefix="/v1/images/jobs")

JOB_ID = parameter("path", "job_id", "The id in the `x-darkroom-job` header of the call's answer.")
STATES: tuple[JobState, ...] = ("queued", "running", "succeeded", "failed", "cancelled")


@router.get(
    "",
    **openapi(
        "List image calls",
        "Returns a page of the key's image calls, in the background or not, without their results.",
        parameters=[parameter("query", "state", "Only calls in this state.", enum=[*STATES]), *page_parameters("call")],
        success=answer("A page of calls.", ImageJobList),
        errors=[400, 401, 404, 500, 503],
    ),
)
async def list_jobs(
    key: Caller,
    services: ServicesDep,
    state: str | None = None,
    limit: str = "20",
    order: str = "desc",
    after: str | None = None,
) -> ImageJobList:
    """The key's calls, newest first unless asked otherwise."""
    page = Page(read_limit(limit), read_order(order), after)
    return await services.images.jobs.list(key, one_of(STATES, state, "state") if state else None, page)


@router.get(
    "/{job_id}",
    **openapi(
        "Show an image call",
        "Tells whether a call is queued or running, its place in the queue, how long it should take, how far it is, "
        "and how it ended. Only the key that made the call can see it.",
        parameters=[JOB_ID, parameter("query", "previews", "`true` for the newest preview of each picture.")],
        success=answer("The state of the call.", ImageJobState),
        errors=[400, 401, 404, 500, 503],
    ),
)
async def show_job(job_id: str, key: Caller, services: ServicesDep, previews: str = "") -> ImageJobState:
    """What became of a call, by the id in its answer's `x-darkroom-job` header."""
    return await services.images.jobs.describe(key, job_id, previews=query_flag("previews", previews))


@router.post(
    "/{job_id}/cancel",
    **openapi(
        "Cancel an image call",
        "Ends a call that is queued or running; it is not charged. One that has ended stays as it is.",
        errors=[401, 404, 409, 500, 503],
        parameters=[JOB_ID],
        success=answer("The state of the call after that.", ImageJobState),
    ),
)
async def cancel_job(job_id: str, key: Caller, services: ServicesDep) -> ImageJobState:
    """End a call."""
    return await services.images.jobs.cancel(key, job_id)
