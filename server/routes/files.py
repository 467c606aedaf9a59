"""GET /cdn/{name}: a finished picture. Its name has 128 random bits: the URL itself is the permission."""

from fastapi import APIRouter
from fastapi.responses import FileResponse

from server.errors import NotFound
from server.flows.thumbnails import MEDIA_TYPE, WIDTHS_PX
from server.http.deps import ServicesDep
from server.http.openapi import answer, openapi, parameter
from server.schemas.errors import ErrorBody
from server.schemas.validation import one_of

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
            parameter(
                "query", "w", "A thumbnail as WebP, of about so many pixels squared.", enum=[*map(str, WIDTHS_PX)]
            ),
            parameter("header", "Range", "The bytes to send, for example `bytes=0-1023`."),
        ],
        success=answer("The whole file.", {}, "image/*"),
        others={
            206: answer("A range of the file.", {}, "image/*"),
            400: {
                "description": "The `Range` header or `w` is invalid.",
                "content": {
                    **answer("", {"type": "string"}, "text/plain")["content"],
                    **answer("", ErrorBody)["content"],
                },
            },
            416: {"description": "The range is outside of the file."},
        },
        errors=[404, 500, 503],
        security=None,
    ),
)
async def show_result(name: str, services: ServicesDep, w: str | None = None) -> FileResponse:
    """The file, whole or a range of it, or a thumbnail."""
    width = read_width(w) if w is not None else None
    path = await services.storage.in_thread(services.storage.path, name)
    record = await services.ledger.in_reader(services.ledger.find_result, name) if path else None
    if path is None or record is None:
        raise NotFound(f"There is no picture '{name}' here; it may have been deleted.", code="result_not_found")
    if width is not None:
        path = await services.thumbnails.path(name, width)
    return FileResponse(path, media_type=MEDIA_TYPE if width else record.media_type, headers=HEADERS)


def read_width(text: str) -> int:
    """The size of a thumbnail. Raises BadRequest."""
    return int(one_of([str(width) for width in WIDTHS_PX], text, "w"))
