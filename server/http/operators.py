"""Which operator a request is from: by an admin key, or by the console's session of one."""

import asyncio
import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request, Response

from server.accounts.keys import find_usable_key
from server.accounts.operators import LIFETIME_S, PREFIX, authenticate_operator, find_operator
from server.errors import StartError, Unauthorized
from server.http.deps import FORWARDED, KeyScheme, ServicesDep, bearer, find_secret, is_of_console
from server.secret_files import read_secret
from server.services import Services

OPERATOR_COOKIE = "darkroom-operator"
FORWARDED_OPERATOR = "operator"  # before a colon and the name, in place of the id of a key
ADMIN_KEY = KeyScheme(scheme_name="admin_key", description="`admin-key` in the server's home.")
PERSON = "person:"  # before the id of a key, as an operator's session; before a name, in the audit
HOME_KEY = "admin"  # the operator's name that the key in the server's home stands for


@dataclass(frozen=True, slots=True)
class RequestOperator:
    """The operator of a request: `name` for the audit, `session` for a cookie, which ends when the key is changed or
    revoked."""

    name: str
    session: str


async def find_request_operator(request: Request, services: Services) -> RequestOperator | None:
    """Return the operator of a request, None for everybody else. Another gateway has found the operator of the requests
    that it forwards."""
    if FORWARDED in request.scope:
        kind, _, name = str(request.scope[FORWARDED]).partition(":")
        return RequestOperator(name, "") if kind == FORWARDED_OPERATOR else None
    home = await asyncio.to_thread(_home_operator, services.settings.admin_key)
    database, secret = services.stores.database, find_secret(request)
    if secret is not None:
        if home and secrets.compare_digest(_session_of(secret), home.session):
            return home
        if not secret.startswith(PREFIX):
            return None
        found = await database.in_reader(authenticate_operator, database, secret)
        return RequestOperator(found.name, found.id) if found else None
    cookie = request.cookies.get(OPERATOR_COOKIE, "")
    if not cookie or not is_of_console(request, services):
        return None
    owner = await services.stores.console_sessions.in_reader(services.stores.console_sessions.subject, cookie)
    if owner is None:
        return None
    if home and owner == home.session:
        return home
    if owner.startswith(PERSON):
        key = await database.in_reader(find_usable_key, database, owner.removeprefix(PERSON))
        return RequestOperator(PERSON + key.name, owner) if key else None
    found = await database.in_reader(find_operator, database, owner)
    return RequestOperator(found.name, found.id) if found else None


def _home_operator(file: Path) -> RequestOperator | None:
    """Return the operator that the home's own key stands for; None if its file is damaged or gone: those of the
    database are left."""
    try:
        return RequestOperator(HOME_KEY, _session_of(read_secret(file)))
    except (StartError, OSError):
        return None


def _session_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


async def operator(request: Request, services: ServicesDep, _: Annotated[None, Depends(ADMIN_KEY)] = None) -> str:
    """Return the operator's name. Raises Unauthorized."""
    found = await find_request_operator(request, services)
    if found is None:
        bearer(request)
        message = (
            "This needs an admin key: that in the file 'admin-key' of the server's home, or one of `darkroom operators "
            "create`."
        )
        raise Unauthorized(message, code="invalid_api_key")
    return found.name


OperatorName = Annotated[str, Depends(operator)]


def set_session_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Give the browser a session's cookie, which no script can read and no other site can send."""
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, max_age=LIFETIME_S, httponly=True, samesite="strict", secure=secure)
