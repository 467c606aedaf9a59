"""What a route may ask for: the services, and the key that the request carries."""

import asyncio
from typing import Annotated

from fastapi import Depends, Request

from server.accounts.keys import Key, authenticate
from server.errors import Unauthorized
from server.services import Services


def services(request: Request) -> Services:
    """What `create_app` built."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]


async def caller(request: Request, services: ServicesDep) -> Key:
    """The key of the Authorization header. Raises Unauthorized."""
    scheme, _, secret = request.headers.get("authorization", "").strip().partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthorized(
            "You didn't provide an API key. Send it in the Authorization header: 'Authorization: Bearer YOUR_KEY'."
        )
    key = await asyncio.to_thread(authenticate, services.database, secret)
    if key is None:
        raise Unauthorized(
            f"Incorrect API key provided: {_masked(secret)}. It is unknown, expired or revoked; "
            "`darkroom keys create` makes a new one.",
            code="invalid_api_key",
        )
    return key


Caller = Annotated[Key, Depends(caller)]


def _masked(secret: str) -> str:
    return f"{secret[:6]}***{secret[-4:]}" if len(secret) > 16 else "***"


def public_base(request: Request, services: Services) -> str:
    """Where results are reached from outside, without a slash at the end."""
    if services.settings.cdn_url:
        return services.settings.cdn_url.rstrip("/")
    return f"{request.url.scheme}://{request.url.netloc}/cdn"
