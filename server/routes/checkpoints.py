"""/admin/checkpoints: what is on the disk, what it can do, and its catalog files. They need the admin key.

Nothing here changes what is served: POST /admin/reload does.
"""

import asyncio
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from server.accounts.audit import record_change
from server.accounts.report import last_charges
from server.errors import BadRequest
from server.flows.proof import Recipe
from server.http import examples
from server.http.deps import ServicesDep
from server.http.openapi import answer, json_body, openapi
from server.http.operators import OperatorName, operator
from server.schemas.checkpoint_reports import adapter_card, report_of
from server.schemas.checkpoints import (
    MAX_CELLS,
    AdapterList,
    AddRequest,
    CheckedFile,
    CheckpointCard,
    CheckpointFindings,
    CheckpointList,
    InspectRequest,
    NewCheckpoint,
    ProofRequest,
    Removal,
    RemoveRequest,
    Verification,
    VerifyRequest,
)
from server.schemas.validation import parse_json, validate
from server.services import Services

router = APIRouter(prefix="/admin/checkpoints", dependencies=[Depends(operator)])


@router.get(
    "",
    **openapi(
        "List checkpoints",
        "Lists the image checkpoints of the catalog and those under the weights folder.",
        success=answer("The checkpoints.", CheckpointList),
        errors=[401, 500, 503],
        security="admin_key",
    ),
)
async def list_checkpoints(services: ServicesDep) -> CheckpointList:
    """With what became of them in the running server, and when they were used last."""
    found = await asyncio.to_thread(services.operations.checkpoints.list_all)
    used = await services.stores.database.in_reader(last_charges, services.stores.database)
    states = {spec.path: state for spec, state in services.engines.image.checkpoints.items()}
    cards = []
    for each in found:
        state = next((s for path, s in states.items() if path == each.path or path.is_relative_to(each.path)), None)
        cards.append(
            CheckpointCard(
                name=each.name,
                bytes=each.bytes,
                models=list(each.models),
                state=state.state if state else each.state,
                detail=state.detail if state else "",
                verifiable=each.has_manifest,
                last_used=max((used[name] for name in each.models if name in used), default=None),
            )
        )
    return CheckpointList(data=cards)


@router.get(
    "/adapters",
    **openapi(
        "List adapters",
        "Lists the LoRA adapters of every model that takes them by request, with rank, trigger words and fit.",
        success=answer("The adapters.", AdapterList),
        errors=[400, 401, 500],
        security="admin_key",
    ),
)
async def list_adapters(services: ServicesDep) -> AdapterList:
    """What their files say, and what warmup found."""
    found = await asyncio.to_thread(services.operations.checkpoints.adapters)
    models = services.served.catalog.current.models
    known = {name: services.engines.image.abilities(model.checkpoint) for name, model in models.items()}
    return AdapterList(
        data=[adapter_card(name, adapter, known.get(name)) for name, adapters in found.items() for adapter in adapters]
    )


@router.post(
    "/inspect",
    **openapi(
        "Inspect a checkpoint",
        "Reads the configs and headers of a folder or a single file, and tells what it is, what is wrong with it, what "
        "it can do, and which values fit it. No weights are read.",
        body=json_body(InspectRequest, examples.INSPECT),
        success=answer("What was found.", CheckpointFindings),
        errors=[400, 401, 404, 413, 500],
        security="admin_key",
    ),
)
async def inspect(request: Request, services: ServicesDep) -> CheckpointFindings:
    """Look at a checkpoint."""
    body = validate(InspectRequest, parse_json(await request.body()), strict=True)
    return report_of(
        *await asyncio.to_thread(services.operations.checkpoints.inspect, body.checkpoint, body.base, body.config)
    )


@router.post(
    "/add",
    **openapi(
        "Add a checkpoint",
        "Writes a catalog file with values that were found in the checkpoint, and a manifest of SHA-256 sums. The "
        "models are served after a reload.",
        body=json_body(AddRequest, examples.ADD),
        success=answer("The catalog file.", NewCheckpoint),
        errors=[400, 401, 404, 413, 500],
        security="admin_key",
    ),
)
async def add(request: Request, services: ServicesDep, by: OperatorName) -> NewCheckpoint:
    """Write its catalog file."""
    body = validate(AddRequest, parse_json(await request.body()), strict=True)
    fields: dict[str, Any] = body.model_dump(exclude={"checkpoint"})
    async with services.served.catalog.lock:
        added = await asyncio.to_thread(lambda: services.operations.checkpoints.add(body.checkpoint, **fields))
    details = {"models": list(added.models), "checkpoint": body.checkpoint}
    await services.stores.database.in_writer(
        record_change, services.stores.database, by, "checkpoint.add", str(added.file), **details
    )
    return NewCheckpoint(
        file=str(added.file),
        text=added.text,
        models=list(added.models),
        manifest=str(added.manifest) if added.manifest else None,
        needs=list(added.needs),
    )


@router.post(
    "/verify",
    **openapi(
        "Verify a checkpoint",
        "Reads every file of a checkpoint and compares it with the manifest that was written when it was added.",
        body=json_body(VerifyRequest, examples.VERIFY),
        success=answer("Each file.", Verification),
        errors=[400, 401, 404, 413, 500],
        security="admin_key",
    ),
)
async def verify(request: Request, services: ServicesDep) -> Verification:
    """Compare it with its manifest."""
    body = validate(VerifyRequest, parse_json(await request.body()), strict=True)
    checked = await asyncio.to_thread(services.operations.checkpoints.verify, body.checkpoint)
    files = [CheckedFile.model_validate(each, from_attributes=True) for each in checked]
    return Verification(unchanged=all(each.state == "unchanged" for each in checked), files=files)


@router.post(
    "/remove",
    **openapi(
        "Remove a checkpoint",
        "Deletes the catalog file of a model and, if `delete_files` is true, the files of its checkpoint. A running "
        "server goes on serving the model until its catalog is reloaded.",
        body=json_body(RemoveRequest, examples.REMOVE),
        success=answer("What was deleted.", Removal),
        errors=[400, 401, 404, 413, 500],
        security="admin_key",
    ),
)
async def remove(request: Request, services: ServicesDep, by: OperatorName) -> Removal:
    """Delete its catalog file."""
    body = validate(RemoveRequest, parse_json(await request.body()), strict=True)
    async with services.served.catalog.lock:
        deleted = await asyncio.to_thread(
            lambda: services.operations.checkpoints.remove(body.model, delete_files=body.delete_files)
        )
    details = {"deleted": [str(path) for path in deleted]}
    await services.stores.database.in_writer(
        record_change, services.stores.database, by, "checkpoint.remove", body.model, **details
    )
    return Removal(deleted=[str(path) for path in deleted])


@router.post(
    "/proof",
    **openapi(
        "Draw a proof",
        "Draws the same prompts and seeds with several models or checkpoints, on one contact sheet. Nothing is "
        "charged. The sheet's metadata (`proof`) are the body that draws it again.",
        body=json_body(ProofRequest, examples.PROOF),
        success=answer("The sheet.", {"type": "string", "format": "binary"}, "image/png"),
        errors=[400, 401, 404, 413, 500, 503],
        security="admin_key",
    ),
)
async def proof(request: Request, services: ServicesDep) -> Response:
    """Draw a contact sheet."""
    body = validate(ProofRequest, parse_json(await request.body()), strict=True)
    recipe = await _recipe(body, services)
    return Response(await services.operations.proofs.draw(recipe), media_type="image/png")


async def _recipe(body: ProofRequest, services: Services) -> Recipe:
    width_px, height_px = (int(side) for side in body.size.split("x"))
    if width_px % 16 or height_px % 16 or not 64 <= min(width_px, height_px) <= max(width_px, height_px) <= 2048:
        raise BadRequest("Invalid 'size': sides are multiples of 16 from 64 to 2048.", param="size")
    axis, values = next(iter(body.axis.model_dump(exclude_none=True).items()), (None, []))
    candidates = [
        await asyncio.to_thread(
            services.operations.proofs.candidate, candidate.name, candidate.sampling.model_dump(exclude_none=True)
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
        raise BadRequest(f"These are {cells} pictures; a sheet has {MAX_CELLS} at most.", param="prompts")
    return recipe
