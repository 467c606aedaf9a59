"""/admin/swap, /undo, /reload, /swaps and /moderation: another checkpoint, catalog or policy without a restart.

They need an admin key.
"""

from fastapi import APIRouter, Depends, Request, Response

from server.errors import NotFound, RunsElsewhere
from server.flows.operators.swaps import CatalogJobs
from server.http import examples
from server.http.deps import ServicesDep, wants_async
from server.http.openapi import PREFER, Json, answer, header_docs, json_body, openapi, parameter
from server.http.operators import FORWARDED_OPERATOR, OperatorName, operator
from server.schemas.admin import CatalogChange, SwapRequest
from server.schemas.moderation import ModerationTest, ModerationTestRequest, PolicySummary
from server.schemas.swaps import CatalogJob, CatalogJobList
from server.schemas.validation import parse_json, validate

LATER: dict[int | str, Json] = {
    202: {
        **answer("The change goes on: its state is at `Location`.", CatalogJob),
        "headers": header_docs(["Location", "Preference-Applied"]),
    }
}
router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])


@router.post(
    "/swap",
    **openapi(
        "Swap a checkpoint",
        "Loads another checkpoint for an image model, and for the models that share its catalog file. Running calls "
        "end with the old one. If the new one can't be loaded, nothing changes. Steps, guidance, areas and "
        "conditioning become what fits it, unless `keep_settings` is true.",
        body=json_body(SwapRequest, examples.SWAP),
        parameters=[PREFER],
        success=answer("What changed.", CatalogChange),
        others=LATER,
        errors=[400, 401, 404, 409, 413, 500],
        security="admin_key",
    ),
)
async def swap(request: Request, services: ServicesDep, by: OperatorName) -> Response:
    """Another checkpoint for a model, and for the models that share its catalog file."""
    body = validate(SwapRequest, parse_json(await request.body()), strict=True)
    jobs = services.operations.catalog_jobs
    return await _answer(request, jobs, jobs.swap(body.model, body.checkpoint, keep_settings=body.keep_settings, by=by))


@router.post(
    "/undo",
    **openapi(
        "Undo a swap",
        "Takes back the latest swap: its catalog file gets its former text, and the catalog is reloaded.",
        parameters=[PREFER],
        success=answer("What changed.", CatalogChange),
        others=LATER,
        errors=[400, 401, 409, 500],
        security="admin_key",
    ),
)
async def undo(request: Request, services: ServicesDep, by: OperatorName) -> Response:
    """Take back the latest swap."""
    return await _answer(request, services.operations.catalog_jobs, services.operations.catalog_jobs.undo(by=by))


@router.post(
    "/reload",
    **openapi(
        "Reload the catalog",
        "Reads the catalog's files again and loads their new checkpoints. If a file or a checkpoint is invalid, "
        "nothing changes.",
        parameters=[PREFER],
        success=answer("What changed.", CatalogChange),
        others=LATER,
        errors=[400, 401, 409, 500],
        security="admin_key",
    ),
)
async def reload(request: Request, services: ServicesDep, by: OperatorName) -> Response:
    """Read the catalog's files again."""
    return await _answer(request, services.operations.catalog_jobs, services.operations.catalog_jobs.reload(by=by))


@router.get(
    "/swaps",
    **openapi(
        "List changes of the catalog",
        "Lists the swaps, undos and reloads since the server's start, newest first, with how far each is.",
        success=answer("The changes.", CatalogJobList),
        errors=[401, 500],
        security="admin_key",
    ),
)
async def list_swaps(services: ServicesDep) -> CatalogJobList:
    """What was changed, and what is being changed."""
    jobs = services.operations.catalog_jobs.list_all()
    return CatalogJobList.of(jobs, len(jobs))


@router.get(
    "/swaps/{job_id}",
    **openapi(
        "Show a change of the catalog",
        "Tells how far a swap, an undo or a reload is, and what came of it.",
        parameters=[parameter("path", "job_id", "The `id` of the change.")],
        success=answer("The change.", CatalogJob),
        errors=[401, 404, 500],
        security="admin_key",
    ),
)
async def show_swap(job_id: str, services: ServicesDep, by: OperatorName) -> CatalogJob:
    """One change. Of several servers the one that makes it answers."""
    try:
        return services.operations.catalog_jobs.show(job_id)
    except NotFound:
        owner = await services.operations.catalog_jobs.find_owner(job_id) if services.cluster is not None else None
        if owner is None:
            raise
        message = "Another server makes this change."
        raise RunsElsewhere(message, owner=owner, key_id=f"{FORWARDED_OPERATOR}:{by}") from None


@router.get(
    "/moderation",
    **openapi(
        "Show the moderation policy",
        "Returns the names of the policy's rules and of its classifiers.",
        success=answer("The policy in use.", PolicySummary),
        errors=[401, 500],
        security="admin_key",
    ),
)
async def show_policy(services: ServicesDep) -> PolicySummary:
    """The policy in use."""
    return services.operations.policy.describe()


@router.post(
    "/moderation/reload",
    **openapi(
        "Reload the moderation policy",
        "Reads the policy file again, and loads its new classifiers. If anything in it is invalid, nothing changes.",
        success=answer("The policy after that.", PolicySummary),
        errors=[400, 401, 409, 500, 503],
        security="admin_key",
    ),
)
async def reload_policy(services: ServicesDep, by: OperatorName) -> PolicySummary:
    """Read the policy again."""
    return await services.operations.policy.reload(by=by)


@router.post(
    "/moderation/test",
    **openapi(
        "Try the moderation policy",
        "Tells what the policy, or a draft of one, says to a text. Nothing is recorded, and no key is charged.",
        body=json_body(ModerationTestRequest, examples.MODERATION_TEST),
        success=answer("What it says.", ModerationTest),
        errors=[400, 401, 413, 500, 503, 504],
        security="admin_key",
    ),
)
async def try_policy(request: Request, services: ServicesDep) -> ModerationTest:
    """A dry run."""
    body = validate(ModerationTestRequest, parse_json(await request.body()), strict=True)
    return await services.operations.policy.test(body)


async def _answer(request: Request, jobs: CatalogJobs, job_id: str) -> Response:
    """What changed or, if the client prefers that, 202 and the job at once."""
    if wants_async(request):
        headers = {"Location": f"/admin/swaps/{job_id}", "Preference-Applied": "respond-async"}
        return Response(jobs.show(job_id).model_dump_json(), 202, headers, "application/json")
    change = CatalogChange.model_validate(await jobs.wait(job_id), from_attributes=True)
    return Response(change.model_dump_json(), media_type="application/json")
