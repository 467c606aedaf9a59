"""GET /cdn/{name}: a finished image. Its name has 128 random bits: the URL itself is the permission."""

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse

from server.accounts.results import StoredResult
from server.backends.storage import Storage
from server.errors import ErrorBody, NotFound
from server.flows.images.thumbnails import MEDIA_TYPE, WIDTHS_PX
from server.http.delivery import prepend
from server.http.deps import ServicesDep
from server.http.openapi import answer, parameter, returns
from server.schemas.validation import one_of

RANGE = re.compile(r"(\d{0,18})-(\d{0,18})", re.ASCII)  # no file has more bytes, and Python reads no 4,301 digits


class InvalidRange(ValueError):
    """The header is malformed."""


class OutsideOfFile(ValueError):
    """The range begins after the end of the file."""


def read_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last; None for the whole file. Raises InvalidRange and
    OutsideOfFile."""
    unit, _, ranges = (header or "").partition("=")
    if header is None or unit.strip().lower() != "bytes" or "," in ranges:
        return None
    match = RANGE.fullmatch(ranges.strip())
    if match is None or match[0] == "-":
        raise InvalidRange("Malformed range header.")
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            raise InvalidRange("Range header: start must be less than end.")
    if start >= size:
        raise OutsideOfFile
    return start, end


Name = Annotated[str, Path(description="The name of the file, as in the `url` of an image.")]
Width = Annotated[
    str | None,
    Query(
        description="A thumbnail as WebP, of about so many pixels squared.",
        json_schema_extra={"enum": [*map(str, WIDTHS_PX)]},
    ),
]
router = APIRouter(prefix="/cdn")

PIECE_BYTES = 512 * 1024  # of a file in an object store: what a client that reads slowly has in memory
HEADERS = {
    "Cache-Control": "private, no-cache",  # kept, but asked for again each time: an image may be deleted
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "inline",
}


@router.api_route(
    "/{name}",
    methods=["GET", "HEAD"],
    response_description="The whole file.",
    responses={
        **returns({}, 404, 500, 503, media_type="image/*"),
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
    openapi_extra={"parameters": [parameter("header", "Range", "The bytes to send, for example `bytes=0-1023`.")]},
)
async def show_result(name: Name, request: Request, services: ServicesDep, w: Width = None) -> Response:
    """Get an image.

    Returns the file of a finished image, whole or a range of its bytes. It needs no key: whoever has the URL may see
    the image.
    """
    width = int(one_of([str(width) for width in WIDTHS_PX], w, "w")) if w is not None else None
    record = await services.stores.results.in_reader(services.stores.results.find_file, name)
    if record is None:
        raise NotFound(f"There is no image '{name}' here; it may have been deleted.", code="result_not_found")
    if width is not None:
        small = await services.images.thumbnails.path(name, width)
        return FileResponse(small, media_type=MEDIA_TYPE, headers=HEADERS)
    storage = services.stores.files
    path = await storage.in_thread(storage.path, name)
    if path is not None:
        return FileResponse(path, media_type=record.media_type, headers=HEADERS)
    await storage.in_thread(storage.require, name)
    return await _from_store(request, storage, record)


async def _from_store(request: Request, storage: Storage, record: StoredResult) -> Response:
    """Send an image from an object store through this server: its clients need not reach the store."""
    headers = HEADERS | {"Accept-Ranges": "bytes", "ETag": f'"{record.sha256}"'}
    size = record.size_bytes
    try:
        wanted = None if _is_outdated(request, headers["ETag"]) else read_range(request.headers.get("range"), size)
    except InvalidRange as error:
        return PlainTextResponse(str(error), 400)
    except OutsideOfFile:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    start, end = wanted or (0, size)
    if wanted is not None:
        headers |= {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    headers |= {"Content-Length": str(end - start)}
    status = 206 if wanted is not None else 200
    if request.method == "HEAD":
        return Response(b"", status, headers, record.media_type)
    pieces = _pieces(storage, record.name, start, end)
    first = await anext(pieces, b"")
    return StreamingResponse(prepend(first, pieces), status, headers, record.media_type)


async def _pieces(storage: Storage, name: str, start: int, end: int) -> AsyncIterator[bytes]:
    for position in range(start, end, PIECE_BYTES):
        yield await storage.in_thread(storage.read_range, name, position, min(end, position + PIECE_BYTES))


def _is_outdated(request: Request, etag: str) -> bool:
    """Return whether the client has a part of another file than this one, and wants all of this one."""
    return request.headers.get("if-range", etag) != etag
