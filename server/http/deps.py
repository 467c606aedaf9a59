"""What routes take from a request: the services, its API key, and what its headers ask for."""

import re
from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Request

from server.accounts.keys import Key, authenticate
from server.errors import BadRequest, Unauthorized
from server.flows.images.idempotency import RetryInfo
from server.services import Services

MAX_IDEMPOTENCY_KEY = 255
FIELD_NAME = re.compile(r"[\w.\[\]-]+", re.ASCII)


def services(request: Request) -> Services:
    app_services: Services = request.app.state.services
    return app_services


ServicesDep = Annotated[Services, Depends(services)]


async def caller(request: Request, services: ServicesDep) -> Key:
    """The key of the Authorization header. Raises Unauthorized."""
    secret = bearer(request)
    key = await services.database.in_reader(authenticate, services.database, secret)
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
    """The URL below which clients find results, without a trailing slash."""
    if services.settings.cdn_url:
        return services.settings.cdn_url.rstrip("/")
    return f"{request.url.scheme}://{request.url.netloc}/cdn"


def read_retry_info(request: Request, fingerprint: str) -> RetryInfo:
    """Whether the request repeats an earlier one, by its headers. Raises BadRequest for an invalid Idempotency-Key."""
    count = request.headers.get("x-stainless-retry-count")
    retry_count = int(count) if count is not None and count.isdecimal() and len(count) < 10 else None
    return RetryInfo(fingerprint, _idempotency_key(request), retry_count)


def ignored_header(fields: Iterable[str]) -> dict[str, str]:
    """Names the fields of a request that had no effect, except names that no header can hold."""
    named = ", ".join(name for name in fields if FIELD_NAME.fullmatch(name))[:500]
    return {"x-darkroom-ignored": named} if named else {}


def wants_keepalive(request: Request, key: Key) -> bool:
    """Whether spaces may precede a JSON answer: the header `X-Keepalive: 1` or 0 decides, else the key's setting."""
    value = request.headers.get("x-keepalive", "").strip().lower()
    return key.keepalive if not value else value not in {"0", "false", "no"}


def _idempotency_key(request: Request) -> str | None:
    """The header's value, bare or as the quoted string of the IETF draft."""
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
