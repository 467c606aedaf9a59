"""GET /console: a page to try the server with. It is plain HTML that calls the same routes as other clients."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, RedirectResponse

router = APIRouter(include_in_schema=False)

PAGES = Path(__file__).resolve().parent.parent / "console"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob: https: http:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@router.get("/")
async def home() -> RedirectResponse:
    return RedirectResponse("/console")


@router.get("/console")
async def page() -> FileResponse:
    return FileResponse(PAGES / "index.html", headers=HEADERS)


@router.get("/console/{name}.{kind}")
async def asset(name: str, kind: str) -> FileResponse:
    files = {"console.css": "text/css", "console.js": "text/javascript"}
    file = f"{name}.{kind}"
    if file not in files:
        return FileResponse(PAGES / "index.html", status_code=404)
    return FileResponse(PAGES / file, media_type=files[file], headers=HEADERS)
