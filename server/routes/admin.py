"""POST /admin/swap, /admin/undo and /admin/reload: another checkpoint or catalog without a restart.

They need the admin key.
"""

from fastapi import APIRouter, Depends, Request

from server.http import examples
from server.http.deps import ServicesDep
from server.http.openapi import answer, json_body, openapi
from server.http.operators import operator
from server.schemas.admin import CatalogChange, SwapRequest
from server.schemas.validation import parse_json, validate

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])


@router.post(
    "/swap",
    **openapi(
        "Swap a checkpoint",
        "Loads another checkpoint for an image model, and for the models that share its catalog file. Running calls "
        "end with the old one. If the new one can't be loaded, nothing changes. Steps, guidance, areas and "
        "conditioning become what fits it, unless `keep_settings` is true.",
        body=json_body(SwapRequest, examples.SWAP),
        success=answer("What changed.", CatalogChange),
        errors=[400, 401, 404, 409, 413, 500],
        security="admin_key",
    ),
)
async def swap(request: Request, services: ServicesDep) -> CatalogChange:
    """Another checkpoint for a model, and for the models that share its catalog file."""
    body = validate(SwapRequest, parse_json(await request.body()), strict=True)
    diff = await services.catalog_updater.swap(body.model, body.checkpoint, keep_settings=body.keep_settings)
    return CatalogChange.model_validate(diff, from_attributes=True)


@router.post(
    "/undo",
    **openapi(
        "Undo a swap",
        "Takes back the latest swap: its catalog file gets its former text, and the catalog is reloaded.",
        success=answer("What changed.", CatalogChange),
        errors=[400, 401, 409, 500],
        security="admin_key",
    ),
)
async def undo(services: ServicesDep) -> CatalogChange:
    """Take back the latest swap."""
    return CatalogChange.model_validate(await services.catalog_updater.undo(), from_attributes=True)


@router.post(
    "/reload",
    **openapi(
        "Reload the catalog",
        "Reads the catalog's files again and loads their new checkpoints. If a file or a checkpoint is invalid, "
        "nothing changes.",
        success=answer("What changed.", CatalogChange),
        errors=[400, 401, 409, 500],
        security="admin_key",
    ),
)
async def reload(services: ServicesDep) -> CatalogChange:
    """Read the catalog's files again."""
    return CatalogChange.model_validate(await services.catalog_updater.reload(), from_attributes=True)
