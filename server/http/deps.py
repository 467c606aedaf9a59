"""What a route may ask for: the services, and the key that the request carries."""

import asyncio
import re
from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Request

from server.accounts.keys import Key, authenticate
from server.errors import BadRequest, Unauthorized
from server.flows.images.idempotency import Visit
from server.services import Services

MAX_IDEMPOTENCY_KEY = 255
FIELD_NAME = re.compile(r"[\w.\[\]-]+", re.ASCII)


def services(request: Request) -> Services:
    """What `create_app` built."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]


async def caller(request: Request, services: ServicesDep) -> Key:
    """The key of the Authorization header. Raises Unauthorized."""
    secret = bearer(request)
    key = await asyncio.to_thread(authenticate, services.database, secret)
    if key is None:
        raise Unauthorized(
            f"Incorrect API key provided: {_masked(secret)}. It is unknown, expired or revoked; "
            "`darkroom keys create` makes a new one.",
            code="invalid_api_key",
        )
    return key


Caller = Annotated[Key, Depends(caller)]


def bearer(request: Request) -> str:
    """The secret of the Authorization header. Raises Unauthorized."""
    scheme, _, secret = request.headers.get("authorization", "").strip().partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthorized(
            "You didn't provide an API key. Send it in the Authorization header: 'Authorization: Bearer YOUR_KEY'."
        )
    return secret


def _masked(secret: str) -> str:
    return f"{secret[:6]}***{secret[-4:]}" if len(secret) > 16 else "***"


def public_base(request: Request, services: Services) -> str:
    """Where results are reached from outside, without a slash at the end."""
    if services.settings.cdn_url:
        return services.settings.cdn_url.rstrip("/")
    return f"{request.url.scheme}://{request.url.netloc}/cdn"


def visit(request: Request, fingerprint: str) -> Visit:
    """What the request's headers say about earlier ones. Raises BadRequest for a key that is none."""
    count = request.headers.get("x-stainless-retry-count")
    retry_count = int(count) if count is not None and count.isdecimal() and len(count) < 10 else None
    return Visit(fingerprint, _idempotency_key(request), retry_count)


def ignored_header(fields: Iterable[str]) -> dict[str, str]:
    """Fields that did nothing are named, for whoever wonders; those that no header can hold are not."""
    named = ", ".join(name for name in fields if FIELD_NAME.fullmatch(name))[:500]
    return {"x-darkroom-ignored": named} if named else {}


def wants_keepalive(request: Request, key: Key) -> bool:
    """Whether a JSON answer may be preceded by spaces: as `X-Keepalive: 1` or 0 asks, else as the key is set."""
    asked = request.headers.get("x-keepalive", "").strip().lower()
    return key.keepalive if not asked else asked not in {"0", "false", "no"}


def _idempotency_key(request: Request) -> str | None:
    """The header's value, bare or as the quoted string that the standard asks for."""
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    key = raw.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= MAX_IDEMPOTENCY_KEY or not key.isprintable():
        message = f"The Idempotency-Key must have 1 to {MAX_IDEMPOTENCY_KEY} printable characters."
        raise BadRequest(message, code="invalid_idempotency_key")
    return key
