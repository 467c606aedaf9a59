"""GET /console: a page to try the server with. It is plain HTML that calls the same routes as other clients, with the
cookie of a session in place of the key, which no script of the page can read."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from server.http.deps import SESSION_COOKIE, Caller, ServicesDep
from server.state.console_sessions import LIFETIME_S

router = APIRouter(include_in_schema=False)

PAGES = Path(__file__).resolve().parent.parent / "console"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob: https: http:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@router.api_route("/", methods=["GET", "HEAD"])
async def home() -> RedirectResponse:
    return RedirectResponse("/console")


@router.api_route("/console", methods=["GET", "HEAD"])
async def page() -> FileResponse:
    return FileResponse(PAGES / "index.html", headers=HEADERS)


@router.post("/console/session", status_code=204)
async def sign_in(request: Request, key: Caller, services: ServicesDep) -> Response:
    """A session for the key of this request."""
    response = Response(status_code=204)
    response.set_cookie(
        SESSION_COOKIE,
        services.console_sessions.open(key.id),
        max_age=LIFETIME_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.delete("/console/session", status_code=204)
async def sign_out(request: Request, services: ServicesDep) -> Response:
    services.console_sessions.close(request.cookies.get(SESSION_COOKIE, ""))
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE)
    return response


@router.get("/console/{name}.{kind}")
async def asset(name: str, kind: str) -> FileResponse:
    files = {"console.css": "text/css", "console.js": "text/javascript"}
    file = f"{name}.{kind}"
    if file not in files:
        return FileResponse(PAGES / "index.html", status_code=404)
    return FileResponse(PAGES / file, media_type=files[file], headers=HEADERS)
