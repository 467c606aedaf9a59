"""The way of this process to a host. One rule for all its clients: a host whose addresses are this machine's or
private is reached directly, whatever else is set; any other by the proxy of DARKROOM_PROXY, if there is one.

The environment's HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY are read by no client: a machine sets them for all its
programs, and an object store or a collector beside the server can't be reached by them.
"""

import asyncio
import ipaddress
import socket
import time
from urllib.parse import urlsplit

import httpx

from server.backends.public_addresses import SPECIAL, is_public

KNOWN_FOR_S = 300.0  # after which a name is resolved again
LIMITS = httpx.Limits(max_connections=None)  # what waits for a connection is bounded by the limits of calls


def proxy_for(url: str, proxy: str | None) -> str | None:
    """Return the proxy by which a URL is reached, None for none. Blocks while a name is resolved."""
    return proxy if proxy is not None and not is_local(urlsplit(url).hostname or "") else None


def is_local(host: str) -> bool:
    """Return whether all addresses of a host are this machine's or private. A name that can't be resolved here is the
    proxy's to resolve. Blocks."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return not any(is_public(ipaddress.ip_address(str(address).partition("%")[0])) for address in found)


def store_options(endpoint: str | None, proxy: str | None) -> dict[str, str]:
    """Return obstore's options for a store that is reached directly or by the proxy, as `proxy_for` decides: without
    them obstore reads the environment. Metadata services of clouds, which hand out credentials, have private addresses.
    Blocks."""
    if endpoint is not None:
        proxy = proxy_for(endpoint, proxy)
    excluded = ["*", "0.0.0.0/0", "::/0"] if proxy is None else ["localhost", *map(str, SPECIAL)]
    return {"proxy_url": proxy or "http://127.0.0.1:9", "proxy_excludes": ",".join(excluded)}


def http_client(timeout: httpx.Timeout, proxy: str | None) -> httpx.AsyncClient:
    """Return an HTTP client for many hosts. It reaches each directly or by the proxy, as `proxy_for` decides."""
    transport = None if proxy is None else _ByHost(proxy)
    return httpx.AsyncClient(timeout=timeout, limits=LIMITS, trust_env=False, transport=transport)


class _ByHost(httpx.AsyncBaseTransport):
    """Sends each request directly or by the proxy."""

    def __init__(self, proxy: str) -> None:
        self._direct = httpx.AsyncHTTPTransport(limits=LIMITS, trust_env=False)
        self._by_proxy = httpx.AsyncHTTPTransport(limits=LIMITS, trust_env=False, proxy=proxy)
        self._known: dict[str, tuple[float, bool]] = {}  # by host: when it was found, and whether it is local

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        way = self._direct if await self._is_local(request.url.host) else self._by_proxy
        return await way.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections of both ways."""
        await self._direct.aclose()
        await self._by_proxy.aclose()

    async def _is_local(self, host: str) -> bool:
        found_at, local = self._known.get(host, (-KNOWN_FOR_S, False))
        if time.monotonic() - found_at > KNOWN_FOR_S:
            local = await asyncio.to_thread(is_local, host)
            self._known[host] = (time.monotonic(), local)
        return local
