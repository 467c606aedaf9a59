"""/docs: the site of docs/, which `make docs` builds into the package and the bundle brings along."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from server.routes.console import HEADERS

router = APIRouter(include_in_schema=False)

SITE = Path(__file__).resolve().parent.parent / "site"
FILES = StaticFiles(directory=SITE, html=True, check_dir=False)
NOT_BUILT = """<!doctype html>
<html lang="en"><title>Darkroom: documentation</title>
<h1>The documentation is not built</h1>
<p>Run <code>make docs</code> in the repository, and load this page again. It writes the site
into <code>server/site/</code>. Until then, read the same pages as text in the repository's <code>docs/</code>.</p>
<p>The server describes its routes at <code>/openapi.json</code>.</p></html>
"""


@router.api_route("/docs", methods=["GET", "HEAD"])
async def home() -> Response:
    """Redirect to the folder, from which the links of the pages start."""
    return RedirectResponse("docs/", headers=HEADERS)


@router.api_route("/docs/{path:path}", methods=["GET", "HEAD"])
async def page(request: Request, path: str) -> Response:
    """Return a file of the site; a folder is its index.html. Without a site, return how to build it, with 404."""
    try:
        response = await FILES.get_response(path or ".", request.scope)
    except HTTPException as error:  # a built site has a page for what is missing
        response = HTMLResponse(NOT_BUILT, status_code=error.status_code)
    response.headers.update(HEADERS)
    return response
