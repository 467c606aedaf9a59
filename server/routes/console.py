"""/console: pages to work with the server in a browser. They call the same routes as other clients, with the cookie of
a session in place of the key, which no script of the pages can read."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from server.backends.engine_host import EngineHost
from server.errors import Unauthorized
from server.http.deps import SESSION_COOKIE, ServicesDep, caller
from server.http.operators import OPERATOR_COOKIE, find_request_operator, set_session_cookie
from server.routes.health import server_state

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).resolve().parent.parent / "console"
FILES = StaticFiles(directory=FOLDER)
DOCUMENT = (FOLDER / "index.html").read_text()
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked again each time, so that a new version's files never mix with an old one's
}


@router.api_route("/", methods=["GET", "HEAD"])
async def home() -> RedirectResponse:
    """Redirect to the console."""
    return RedirectResponse("console")  # below whatever path a proxy has


@router.get("/console/session")
async def show_session(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Return who the browser has signed in as, with a key, as an operator, or both; and the host of the provider that
    people may sign in with, if there is one."""
    try:
        key = await caller(request, services)
    except Unauthorized:
        key = None
    issuer = services.settings.oidc_issuer
    person = {"person": True} if key and key.person else {}  # who signed in with the provider
    return {
        "key": {"id": key.id, "name": key.name, **person} if key else None,
        "operator": await find_request_operator(request, services) is not None,
        **({"provider": urlsplit(issuer).hostname} if issuer else {}),
    }


@router.get("/console/state")
async def show_state(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Return what a probe is told, but always with 200: browsers write other answers to their consoles as errors. While
    the server starts, operators see the names of the checkpoints that still load, all others their number."""
    engines = services.engines
    hosts: list[EngineHost[Any, Any]] = [*engines.image.hosts, engines.chat, engines.classify]
    loading = sorted({spec.name for host in hosts for spec in host.loading})
    status = server_state(services)
    shown = loading if status == "starting" and loading and await find_request_operator(request, services) else []
    return {"status": status, "left": len(loading), "loading": shown}


@router.post("/console/session", status_code=204)
async def sign_in(request: Request, services: ServicesDep) -> Response:
    """Open a session for the key of this request, which may be the admin key. A browser may have one of each."""
    sessions = services.stores.console_sessions
    if operator := await find_request_operator(request, services):
        name, value = OPERATOR_COOKIE, await sessions.in_writer(sessions.open, operator.session)
    else:
        key = await caller(request, services)
        name, value = SESSION_COOKIE, await sessions.in_writer(sessions.open, key.id)
    response = Response(status_code=204)
    set_session_cookie(request, response, name, value)
    return response


@router.delete("/console/session", status_code=204)
async def sign_out(request: Request, services: ServicesDep) -> Response:
    """End the browser's sessions."""
    for name in (SESSION_COOKIE, OPERATOR_COOKIE):
        if cookie := request.cookies.get(name):
            await services.stores.console_sessions.in_writer(services.stores.console_sessions.close, cookie)
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE)
    response.delete_cookie(OPERATOR_COOKIE)
    return response


@router.api_route("/console", methods=["GET", "HEAD"])
@router.api_route("/console/{path:path}", methods=["GET", "HEAD"])
async def page(request: Request, path: str = "") -> Response:
    """Send a file of the console. A path without a suffix is a page, which the same script shows."""
    try:
        response = await FILES.get_response(path, request.scope) if Path(path).suffix else _document(request)
    except HTTPException as error:
        response = Response(status_code=error.status_code)
    response.headers.update(HEADERS)
    return response


def _document(request: Request) -> Response:
    """Return the document of every page. It names its files by the way from the page to them: the browser may know the
    server by another path than the server itself."""
    below = request.url.path.removeprefix("/console").count("/")
    return HTMLResponse(DOCUMENT.replace('="/console/', f'="{"../" * (below - 1) if below else "console/"}'))
