"""POST /admin/swap and /admin/reload: another checkpoint or catalog without a pause. For whoever has the admin key."""

import asyncio
import secrets

from fastapi import APIRouter, Depends, Request

from server.errors import Unauthorized
from server.flows.catalog_update import reload_catalog, swap_checkpoint
from server.http.deps import ServicesDep, bearer
from server.schemas.admin import CatalogChange, SwapRequest
from server.schemas.validation import parse_json, validate


async def administrator(request: Request, services: ServicesDep) -> None:
    """The admin key of the home. Raises Unauthorized."""
    known = (await asyncio.to_thread(services.settings.admin_key.read_text)).strip()
    if not secrets.compare_digest(bearer(request).encode(), known.encode()):
        raise Unauthorized(
            "This needs the admin key, which is in the file 'admin-key' of the server's home.", code="invalid_api_key"
        )


router = APIRouter(prefix="/admin", dependencies=[Depends(administrator)])


@router.post("/swap")
async def swap(request: Request, services: ServicesDep) -> CatalogChange:
    """Another checkpoint for a model, and for those that share its catalog file."""
    body = validate(SwapRequest, parse_json(await request.body()), strict=True)
    change = await swap_checkpoint(services, body.model, body.checkpoint)
    return CatalogChange.model_validate(change, from_attributes=True)


@router.post("/reload")
async def reload(services: ServicesDep) -> CatalogChange:
    """The catalog's files as they are now."""
    return CatalogChange.model_validate(await reload_catalog(services), from_attributes=True)
