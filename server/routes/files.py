"""GET /cdn/{name}: a finished picture. Its name has 128 random bits, so whoever has the URL may see it."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import FileResponse

from server.errors import NotFound
from server.http.deps import ServicesDep

router = APIRouter(prefix="/cdn")

HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "inline",
}


@router.api_route("/{name}", methods=["GET", "HEAD"])
async def show_result(name: str, services: ServicesDep) -> FileResponse:
    """The file, whole or by range."""
    path = services.storage.path(name)
    record = await asyncio.to_thread(services.ledger.find_result, name) if path else None
    if path is None or record is None:
        raise NotFound(f"There is no picture '{name}' here; it may have been deleted.", code="result_not_found")
    return FileResponse(path, media_type=record.media_type, headers=HEADERS)
