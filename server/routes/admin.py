"""/admin/swap, /undo, /reload, /swaps and /moderation: another checkpoint, catalog or policy without a restart.

They need an admin key.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from server.errors import NotFound, RunsElsewhere
from server.flows.operators.swaps import CatalogJobs
from server.http import examples
from server.http.bodies import JsonBody
from server.http.deps import ServicesDep, wants_async
from server.http.openapi import PREFER, accepted_response, errors
from server.http.operators import FORWARDED_OPERATOR, OperatorName, operator
from server.schemas.admin import CatalogChange, CatalogJob, CatalogJobList, SwapRequest
from server.schemas.moderation import ModerationTest, ModerationTestRequest, PolicySummary

LATER = accepted_response("The change goes on: its state is at `Location`.", CatalogJob)
Swap = Annotated[SwapRequest, Depends(JsonBody(SwapRequest, examples.SWAP))]
Check = Annotated[ModerationTestRequest, Depends(JsonBody(ModerationTestRequest, examples.MODERATION_TEST))]
JobId = Annotated[str, Path(description="The `id` of the change.")]
router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])


@router.post(
    "/swap",
    response_model=CatalogChange,
    response_description="What changed.",
    responses={**errors(400, 404, 409, 413), **LATER},
    openapi_extra={"parameters": [PREFER]},
)
async def swap(request: Request, body: Swap, services: ServicesDep, by: OperatorName) -> Response:
    """Swap a checkpoint.

    Loads another checkpoint for an image model, and for the models that share its catalog file. Running calls end with
    the old one. If the new one can't be loaded, nothing changes. Steps, guidance, areas and conditioning become those
    that fit it, and keys that took the place of the old one's parts (`vae`, `text_encoder`, `denoiser`) are left out,
    unless `keep_settings` is true. Adapters, embeddings and controls stay if it loads with them. The answer says of
    each key what became of it, and why.
    """
    jobs = services.operations.catalog_jobs
    return await _answer(request, jobs, jobs.swap(body.model, body.checkpoint, keep_settings=body.keep_settings, by=by))


@router.post(
    "/undo",
    response_model=CatalogChange,
    response_description="What changed.",
    responses={**errors(400, 409), **LATER},
    openapi_extra={"parameters": [PREFER]},
)
async def undo(request: Request, services: ServicesDep, by: OperatorName) -> Response:
    """Undo a swap.

    Takes back the latest swap: its catalog file gets its former text, and the catalog is reloaded.
    """
    return await _answer(request, services.operations.catalog_jobs, services.operations.catalog_jobs.undo(by=by))


@router.post(
    "/reload",
    response_model=CatalogChange,
    response_description="What changed.",
    responses={**errors(400, 409), **LATER},
    openapi_extra={"parameters": [PREFER]},
)
async def reload(request: Request, services: ServicesDep, by: OperatorName) -> Response:
    """Reload the catalog.

    Reads the catalog's files again and loads their new checkpoints. If a file or a checkpoint is invalid, nothing
    changes.
    """
    return await _answer(request, services.operations.catalog_jobs, services.operations.catalog_jobs.reload(by=by))


@router.get("/swaps", response_description="The changes.")
async def list_swaps(services: ServicesDep) -> CatalogJobList:
    """List changes of the catalog.

    Lists the swaps, undos and reloads since the server's start, newest first, with how far each is.
    """
    return CatalogJobList.of(services.operations.catalog_jobs.list_all())


@router.get("/swaps/{job_id}", response_description="The change.", responses=errors(404))
async def show_swap(job_id: JobId, services: ServicesDep, by: OperatorName) -> CatalogJob:
    """Show a change of the catalog.

    Tells how far a swap, an undo or a reload is, and its outcome.
    """
    try:
        return services.operations.catalog_jobs.show(job_id)
    except NotFound:
        owner = await services.operations.catalog_jobs.find_owner(job_id) if services.cluster is not None else None
        if owner is None:
            raise
        message = "Another server makes this change."
        raise RunsElsewhere(message, owner=owner, key_id=f"{FORWARDED_OPERATOR}:{by}") from None


@router.get("/moderation", response_description="The policy in use.")
async def show_policy(services: ServicesDep) -> PolicySummary:
    """Show the moderation policy.

    Returns the names of the policy's rules and of its classifiers.
    """
    return services.operations.policy.describe()


@router.post("/moderation/reload", response_description="The policy after that.", responses=errors(400, 409))
async def reload_policy(services: ServicesDep, by: OperatorName) -> PolicySummary:
    """Reload the moderation policy.

    Reads the policy file again, and loads its new classifiers. If anything in it is invalid, nothing changes.
    """
    return await services.operations.policy.reload(by=by)


@router.post(
    "/moderation/test",
    response_description="What it says.",
    responses=errors(400, 413, 504),
)
async def try_policy(body: Check, services: ServicesDep) -> ModerationTest:
    """Try the moderation policy.

    Tells the breaches of the policy, or of a draft of one, that a text has. Nothing is recorded, and no key is charged.
    """
    return await services.operations.policy.test(body)


async def _answer(request: Request, jobs: CatalogJobs, job_id: str) -> Response:
    """Answer with the change or, if the client prefers that, with 202 and the job at once."""
    if wants_async(request):
        headers = {"Location": f"/admin/swaps/{job_id}", "Preference-Applied": "respond-async"}
        return Response(jobs.show(job_id).model_dump_json(), 202, headers, "application/json")
    change = CatalogChange.describe(await jobs.wait(job_id))
    return Response(change.model_dump_json(), media_type="application/json")
