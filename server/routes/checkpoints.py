"""/admin/checkpoints: the checkpoints on the disk, their capabilities, and their catalog files. They need the admin
key.

Nothing here changes the served catalog: POST /admin/reload does.
"""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request, Response

from pipelines.protocol.messages import CheckpointState
from server.accounts.audit import record_change
from server.accounts.report import last_charges
from server.errors import BadRequest
from server.flows.operators.comparison_grid import Recipe
from server.http import examples
from server.http.bodies import JsonBody
from server.http.deps import ServicesDep, wants_async
from server.http.openapi import PREFER, accepted_response, errors, returns
from server.http.operators import OperatorName, operator
from server.schemas.checkpoints import (
    MAX_CELLS,
    AdapterList,
    AddRequest,
    CheckedFile,
    CheckpointCard,
    CheckpointFindings,
    CheckpointList,
    GridState,
    InspectRequest,
    NewCheckpoint,
    ProofRequest,
    Removal,
    RemoveRequest,
    Verification,
    VerifyRequest,
    adapter_card,
    report_of,
)
from server.services import Services

Inspected = Annotated[InspectRequest, Depends(JsonBody(InspectRequest, examples.INSPECT))]
Added = Annotated[AddRequest, Depends(JsonBody(AddRequest, examples.ADD))]
Verified = Annotated[VerifyRequest, Depends(JsonBody(VerifyRequest, examples.VERIFY))]
Removed = Annotated[RemoveRequest, Depends(JsonBody(RemoveRequest, examples.REMOVE))]
Grid = Annotated[ProofRequest, Depends(JsonBody(ProofRequest, examples.GRID))]
GridId = Annotated[str, Path(description="The `id` of the comparison.")]
LATER = accepted_response("It is drawn: its state is at `Location`.", GridState)
router = APIRouter(prefix="/admin/checkpoints", dependencies=[Depends(operator)])


@router.get("", response_description="The checkpoints.")
async def list_checkpoints(services: ServicesDep) -> CheckpointList:
    """List checkpoints.

    Lists the image checkpoints of the catalog and those under the weights folder.
    """
    found = await asyncio.to_thread(services.operations.checkpoints.list_all)
    used = await services.stores.database.in_reader(last_charges, services.stores.database)
    known = services.engines.image.checkpoints
    served = [known[spec] for spec in services.served.catalog.current.checkpoints if spec in known]
    cards = []
    for each in found:
        states = [state for state in served if state.spec.path.is_relative_to(each.path)]
        state = next((state for state in states if state.state == "failed"), states[0] if states else None)
        is_shared = len({(state.state, state.detail) for state in states}) > 1
        cards.append(
            CheckpointCard.describe(
                each,
                state=_state(services, state) if state else each.state,
                detail="" if state is None else f"{state.spec.source}: {state.detail}" if is_shared else state.detail,
                verifiable=each.has_manifest,
                last_used=max((used[name] for name in each.models if name in used), default=None),
            )
        )
    return CheckpointList(data=cards)


def _state(services: Services, state: CheckpointState) -> Literal["loaded", "failed", "asleep"]:
    asleep = any(host.wake_s(state.spec) for host in services.engines.image.hosts)
    return "asleep" if asleep and state.state == "loaded" else state.state


@router.get("/adapters", response_description="The adapters.", responses=errors(400))
async def list_adapters(services: ServicesDep) -> AdapterList:
    """List adapters.

    Lists the LoRA adapters of every model that takes them by request, with rank, trigger words and fit.
    """
    found = await asyncio.to_thread(services.operations.checkpoints.adapters)
    models = services.served.catalog.current.models
    known = {name: services.engines.image.capabilities(model.checkpoint) for name, model in models.items()}
    return AdapterList(
        data=[adapter_card(name, adapter, known.get(name)) for name, adapters in found.items() for adapter in adapters]
    )


@router.post("/inspect", response_description="What was found.", responses=errors(404))
async def inspect(body: Inspected, services: ServicesDep) -> CheckpointFindings:
    """Inspect a checkpoint.

    Reads the configs and headers of a folder or a single file, and tells its class, its faults, its capabilities, and
    the values that fit it. No weights are read.
    """
    fields: dict[str, Any] = body.model_dump(exclude={"checkpoint"})
    return report_of(
        *await asyncio.to_thread(lambda: services.operations.checkpoints.inspect(body.checkpoint, **fields))
    )


@router.post("/add", response_description="The catalog file.", responses=errors(404))
async def add(body: Added, services: ServicesDep, by: OperatorName) -> NewCheckpoint:
    """Add a checkpoint.

    Writes a catalog file with values that were found in the checkpoint, and a manifest of SHA-256 sums. The models are
    served after a reload.
    """
    fields: dict[str, Any] = body.model_dump(exclude={"checkpoint"})
    async with services.served.catalog.lock:
        added = await asyncio.to_thread(lambda: services.operations.checkpoints.add(body.checkpoint, **fields))
    details, database = {"models": list(added.models), "checkpoint": body.checkpoint}, services.stores.database
    await database.in_writer(record_change, database, by, "checkpoint.add", str(added.file), **details)
    manifest = str(added.manifest) if added.manifest else None
    return NewCheckpoint.describe(added, file=str(added.file), manifest=manifest)


@router.post("/verify", response_description="Each file.", responses=errors(404))
async def verify(body: Verified, services: ServicesDep) -> Verification:
    """Verify a checkpoint.

    Reads every file of a checkpoint and compares it with the manifest that was written when it was added.
    """
    checked = await asyncio.to_thread(services.operations.checkpoints.verify, body.checkpoint)
    files = [CheckedFile.describe(each) for each in checked]
    return Verification(unchanged=all(each.state == "unchanged" for each in checked), files=files)


@router.post("/remove", response_description="What was deleted.", responses=errors(404))
async def remove(body: Removed, services: ServicesDep, by: OperatorName) -> Removal:
    """Remove a checkpoint.

    Deletes the catalog file of a model and, if `delete_files` is true, the files of its checkpoint. A running server
    goes on serving the model until its catalog is reloaded.
    """
    async with services.served.catalog.lock:
        deleted = await asyncio.to_thread(
            lambda: services.operations.checkpoints.remove(body.model, delete_files=body.delete_files)
        )
    names, database = [str(path) for path in deleted], services.stores.database
    await database.in_writer(record_change, database, by, "checkpoint.remove", body.model, deleted=names)
    return Removal(deleted=names)


@router.post(
    "/proof",
    response_description="The sheet.",
    responses={**returns({"type": "string", "format": "binary"}, 404, media_type="image/png"), **LATER},
    openapi_extra={"parameters": [PREFER]},
)
async def comparison_grid(request: Request, body: Grid, services: ServicesDep, by: OperatorName) -> Response:
    """Draw a comparison grid.

    Draws the same prompts and seeds with several models or checkpoints, on one contact sheet. Nothing is charged. The
    sheet's metadata (`proof`) are the body that draws it again. DELETE /admin/jobs/{id} cancels it.
    """
    jobs = services.operations.grid_jobs
    job_id = jobs.begin(await _recipe(body, services), by=by)
    if wants_async(request):
        headers = {"Location": f"/admin/checkpoints/proof/{job_id}", "Preference-Applied": "respond-async"}
        return Response(jobs.show(job_id).model_dump_json(), 202, headers, "application/json")
    return Response(await jobs.wait(job_id), media_type="image/png")


@router.get("/proof/{job_id}", response_description="The comparison.", responses=errors(404))
async def show_grid(job_id: GridId, services: ServicesDep) -> GridState:
    """Show a comparison grid.

    Tells how many images of a comparison grid are drawn, and why it failed.
    """
    return services.operations.grid_jobs.show(job_id)


@router.get(
    "/proof/{job_id}/sheet",
    response_description="The sheet.",
    responses=returns({"type": "string", "format": "binary"}, 404, media_type="image/png"),
)
async def read_grid(job_id: GridId, services: ServicesDep) -> Response:
    """Read a comparison grid's sheet.

    Returns the contact sheet of a comparison grid that was drawn without its client waiting.
    """
    return Response(services.operations.grid_jobs.sheet(job_id), media_type="image/png")


async def _recipe(body: ProofRequest, services: Services) -> Recipe:
    width_px, height_px = (int(side) for side in body.size.split("x"))
    if width_px % 16 or height_px % 16 or not 64 <= min(width_px, height_px) <= max(width_px, height_px) <= 2048:
        raise BadRequest("Invalid 'size': sides are multiples of 16 from 64 to 2048.", param="size")
    axis, values = next(iter(body.axis.model_dump(exclude_none=True).items()), (None, []))
    candidates = [
        await asyncio.to_thread(
            services.operations.comparison_grids.candidate,
            candidate.name,
            candidate.sampling.model_dump(exclude_none=True),
        )
        for candidate in body.candidates
    ]
    recipe = Recipe(
        candidates=tuple(candidates),
        prompts=tuple(body.prompts),
        seeds=tuple(body.seeds),
        axis=axis,
        values=tuple(values),
        width_px=width_px,
        height_px=height_px,
        cell_px=body.cell_px,
    )
    if (cells := len(recipe.columns) * len(recipe.rows)) > MAX_CELLS:
        raise BadRequest(f"These are {cells} images; a sheet has {MAX_CELLS} at most.", param="prompts")
    return recipe
