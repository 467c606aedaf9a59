"""GET /console: a page to try the server with. It is plain HTML that calls the same routes as every other client."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, RedirectResponse

router = APIRouter(include_in_schema=False)

PAGES = Path(__file__).resolve().parent.parent / "console"
POLICY = "default-src 'self'; img-src 'self' data: blob: https: http:; style-src 'self'; script-src 'self'"


@router.get("/")
async def home() -> RedirectResponse:
    """People who open the bare address mean the console."""
    return RedirectResponse("/console")


@router.get("/console")
async def page() -> FileResponse:
    """The page."""
    return FileResponse(PAGES / "index.html", headers={"Content-Security-Policy": POLICY})


@router.get("/console/{name}.{kind}")
async def asset(name: str, kind: str) -> FileResponse:
    """Its style and script."""
    known = {"console.css": "text/css", "console.js": "text/javascript"}
    file = f"{name}.{kind}"
    if file not in known:
        return FileResponse(PAGES / "index.html", status_code=404)
    return FileResponse(PAGES / file, media_type=known[file])
