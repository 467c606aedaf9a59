"""Sending of webhooks: a POST to a URL that a caller named, guarded against SSRF as the fetching of references is."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import anyio
import httpcore

from server.backends.fetch import (
    FetchFailed,
    FetchRefused,
    Resolver,
    resolve_checked,
    resolve_host,
    tls_context_of,
)
from server.backends.pinned import LOST, PinnedBackend
from server.backends.public_addresses import Address, is_public

MAX_URL_LENGTH = 2000
Reach = Literal["off", "public", "any"]  # where webhooks may go


def check_url(url: str, reach: Reach) -> tuple[str, int]:
    """Return the host and port of a webhook's URL. Raises FetchRefused for a URL that no webhook may go to, at any
    address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchRefused("it is not a URL that can be read.") from error
    if len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or not parts.hostname:
        raise FetchRefused("it is not a URL that can be read.")
    if parts.username is not None or parts.password is not None:
        raise FetchRefused("it must carry no user name or password.")
    scheme = parts.scheme.lower()
    if scheme not in {"https", "http"} or (reach == "public" and (scheme != "https" or port not in {None, 443})):
        raise FetchRefused("webhooks go to https URLs at port 443.")
    return parts.hostname, port or (443 if scheme == "https" else 80)


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """Where webhooks may go, by which proxy, how long one may take, and how the addresses of hosts are found."""

    reach: Reach
    proxy: str | None = None
    timeout_s: float = 15.0
    resolve: Resolver = resolve_host


async def post(url: str, content: bytes, headers: Mapping[str, str], rules: WebhookRules) -> int:
    """Post to a URL, by the proxy if there is one and the host is not local, and return the status of the answer, whose
    body is not read; redirects are not followed. Raises FetchRefused and FetchFailed."""
    host, port = check_url(url, rules.reach)
    allowed: Callable[[Address], bool] = is_public if rules.reach == "public" else lambda _: True
    try:
        with anyio.fail_after(rules.timeout_s):
            address = await resolve_checked(host, port, rules.resolve, allowed, rules.proxy)
            context = await asyncio.to_thread(tls_context_of)
            backend = PinnedBackend(host, address, rules.proxy)
            pool = httpcore.AsyncConnectionPool(ssl_context=context, network_backend=backend)
            sent = [("Content-Type", "application/json"), ("User-Agent", "Darkroom"), *headers.items()]
            async with pool, pool.stream("POST", url, headers=sent, content=content) as response:
                return response.status
    except TimeoutError as error:
        raise FetchFailed(f"the URL did not answer within {rules.timeout_s:g} s.") from error
    except LOST as error:
        raise FetchFailed(f"the URL could not be reached: {type(error).__name__}.") from error
