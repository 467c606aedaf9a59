"""/console/oidc: the browser's way to the organisation's identity provider and back. A person who fails comes back to
the console, which says why in words."""

import re
from typing import Annotated
from urllib.parse import urlencode

import structlog
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from server.accounts.operators import ConsoleSessions
from server.backends.oidc import Attempt, SignInFailed
from server.errors import NotFound
from server.flows.operators.sign_in import SignedIn, SignIn
from server.http.deps import SESSION_COOKIE, ServicesDep
from server.http.operators import OPERATOR_COOKIE, PERSON, set_session_cookie
from server.http.public_address import own_address
from server.services import Services

router = APIRouter(prefix="/console/oidc", include_in_schema=False)

ATTEMPT_COOKIE = "darkroom-attempt"
ATTEMPT_S = 900
PAGE = re.compile(r"[a-z-]{0,40}", re.ASCII)  # of the console

log = structlog.stdlib.get_logger("darkroom.sign_in")


async def sign_in_of(services: ServicesDep) -> SignIn:
    """Return what signs people in. Raises NotFound without a provider."""
    if services.sign_in is None:
        raise NotFound("This server has no provider to sign in with.", code="unknown_url")
    return services.sign_in


SignInDep = Annotated[SignIn, Depends(sign_in_of)]


@router.get("/login")
async def login(request: Request, services: ServicesDep, sign_in: SignInDep, to: str = "") -> Response:
    """Send the browser to the provider. It comes back to the page `to` of the console."""
    attempt, page = Attempt.new(), to if PAGE.fullmatch(to) else ""
    try:
        url = await sign_in.provider.authorization_url(attempt, _redirect_uri(request, services))
    except SignInFailed as error:
        return _redirect_failure(page, error)
    response = RedirectResponse(url, 303)
    secure = request.url.scheme == "https"
    # lax: the provider's page sends the browser back
    response.set_cookie(
        ATTEMPT_COOKIE, f"{attempt.secret}.{page}", max_age=ATTEMPT_S, httponly=True, samesite="lax", secure=secure
    )
    return response


@router.get("/callback")
async def callback(request: Request, services: ServicesDep, sign_in: SignInDep) -> Response:
    """Open the sessions of the person whom the provider has sent back."""
    secret, _, page = request.cookies.get(ATTEMPT_COOKIE, "").partition(".")
    page = page if PAGE.fullmatch(page) else ""
    try:
        found = await sign_in.finish(request.query_params, Attempt(secret), _redirect_uri(request, services))
    except SignInFailed as error:
        response = _redirect_failure(page, error)
    else:
        response = RedirectResponse(f"../{page}", 303)
        await _open_sessions(request, response, services.stores.console_sessions, found)
    response.delete_cookie(ATTEMPT_COOKIE)
    return response


@router.get("/logout")
async def logout(request: Request, services: ServicesDep, sign_in: SignInDep) -> Response:
    """Send a browser whose sessions have ended to the provider, to sign out there too."""
    back = f"{own_address(request, services.settings.public_urls)}/console"
    return RedirectResponse(await sign_in.provider.logout_url(back) or "../", 303)


async def _open_sessions(request: Request, response: Response, sessions: ConsoleSessions, found: SignedIn) -> None:
    """Open a session of the person's key, and one of an operator if they are one. An operator's session of somebody who
    signed in here before ends."""
    before = request.cookies.get(OPERATOR_COOKIE, "")
    if before and (await sessions.in_reader(sessions.subject, before) or "").startswith(PERSON):
        await sessions.in_writer(sessions.close, before)
    set_session_cookie(request, response, SESSION_COOKIE, await sessions.in_writer(sessions.open, found.key.id))
    if found.operator:
        opened = await sessions.in_writer(sessions.open, PERSON + found.key.id)
        set_session_cookie(request, response, OPERATOR_COOKIE, opened)


def _redirect_uri(request: Request, services: Services) -> str:
    return f"{own_address(request, services.settings.public_urls)}/console/oidc/callback"


def _redirect_failure(page: str, error: SignInFailed) -> Response:
    log.warning("nobody was signed in", reason=error.reason, error=str(error))
    return RedirectResponse(f"../{page}?{urlencode({'sign-in': error.reason})}", 303)
