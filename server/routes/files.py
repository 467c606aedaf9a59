"""GET /cdn/{name}: a finished picture. Its name has 128 random bits: the URL itself is the permission."""

from fastapi import APIRouter
from fastapi.responses import FileResponse

from server.errors import NotFound
from server.http.deps import ServicesDep
from server.http.openapi import answer, openapi, parameter

router = APIRouter(prefix="/cdn")

HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "inline",
}


@router.api_route(
    "/{name}",
    methods=["GET", "HEAD"],
    **openapi(
        "Get a picture",
        "Returns the file of a finished picture, whole or a range of its bytes. It needs no key: whoever has the URL "
        "may see the picture.",
        parameters=[
            parameter("path", "name", "The name of the file, as in the `url` of a picture."),
            parameter("header", "Range", "The bytes to send, for example `bytes=0-1023`."),
        ],
        success=answer("The whole file.", {}, "image/*"),
        others={
            206: answer("A range of the file.", {}, "image/*"),
            400: answer("The `Range` header is invalid.", {"type": "string"}, "text/plain"),
            416: {"description": "The range is outside of the file."},
        },
        errors=[404, 500, 503],
        security=None,
    ),
)
async def show_result(name: str, services: ServicesDep) -> FileResponse:
    """The file, whole or a range of it."""
    path = await services.storage.in_thread(services.storage.path, name)
    record = await services.ledger.in_reader(services.ledger.find_result, name) if path else None
    if path is None or record is None:
        raise NotFound(f"There is no picture '{name}' here; it may have been deleted.", code="result_not_found")
    return FileResponse(path, media_type=record.media_type, headers=HEADERS)
