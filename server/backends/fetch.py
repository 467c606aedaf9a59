"""Reference images from the internet, for operators who allow it, without lending the server's network to strangers.

https only. The host is resolved once, every address it has is checked, and the connection goes to a checked address
(with the name in SNI and certificate), so a name that changes its mind between check and use gains nothing. Redirects
are followed by hand and checked the same way.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urljoin, urlsplit

import httpcore

MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
MAX_URL_LENGTH = 4096
NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Awaitable[list[str]]]
# threads of its own: a name server that does not answer holds one for half a minute, and the common ones renew leases
RESOLVING = ThreadPoolExecutor(8, thread_name_prefix="resolve")


class FetchRefused(Exception):
    """A URL that this server does not fetch."""


class FetchFailed(Exception):
    """A URL that it tried and could not."""


class FetchTooLarge(Exception):
    """A file that is larger than may be."""


def is_public(address: Address) -> bool:
    """Whether an address is on the internet, also when it is wrapped in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or any(address in network for network in NAT64):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


async def resolve_host(host: str, port: int) -> list[str]:
    """Every address of a host. Raises OSError."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(RESOLVING, ask)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def fetch_image(
    url: str,
    *,
    allow: bool,
    max_bytes: int,
    timeout_s: float,
    resolve: Resolver = resolve_host,
    is_allowed: Callable[[Address], bool] = is_public,
    ports: tuple[int, ...] = (443,),
    ca_file: str | None = None,
) -> bytes:
    """The body behind a URL. Raises FetchRefused before anything is sent, FetchFailed and FetchTooLarge after."""
    _check_url(url, ports)
    if not allow:
        raise FetchRefused(
            "this server does not fetch URLs (DARKROOM_FETCH is off): send the picture as a base64 data URI, as a file "
            "to /v1/images/edits, or as the URL of one of this server's own results."
        )
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                body, url = await _hop(url, max_bytes, resolve, is_allowed, ports, ca_file)
                if body is not None:
                    return body
            raise FetchFailed(f"the URL redirects more than {MAX_REDIRECTS} times.")
    except TimeoutError as error:
        raise FetchFailed(f"the URL did not answer within {timeout_s:g} s.") from error


async def _hop(
    url: str,
    max_bytes: int,
    resolve: Resolver,
    is_allowed: Callable[[Address], bool],
    ports: tuple[int, ...],
    ca_file: str | None,
) -> tuple[bytes | None, str]:
    """One request: the body, or where it redirects to."""
    host, port = _check_url(url, ports)
    pinned = await _checked_address(host, port, resolve, is_allowed)
    trusted = ssl.create_default_context(cafile=ca_file)
    headers = [("Accept", "image/*"), ("Accept-Encoding", "identity"), ("User-Agent", "Darkroom")]
    pool = httpcore.AsyncConnectionPool(ssl_context=trusted, network_backend=_Pinned(host, pinned))
    try:
        async with pool, pool.stream("GET", url, headers=headers) as answer:
            if answer.status in REDIRECTS:
                return None, _location(url, answer)
            if answer.status != 200:
                raise FetchFailed(f"the URL answered with status {answer.status}.")
            return await _bounded(answer, max_bytes), url
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ssl.SSLError) as error:
        raise FetchFailed(f"the URL could not be fetched: {type(error).__name__}.") from error


def _location(url: str, answer: httpcore.Response) -> str:
    found = [value for name, value in answer.headers if name.lower() == b"location"]
    try:
        return urljoin(url, found[0].decode("latin-1"))
    except (IndexError, ValueError) as error:
        raise FetchFailed("the URL redirects to nowhere.") from error


async def _bounded(answer: httpcore.Response, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_stream():
        body += chunk
        if len(body) > max_bytes:
            raise FetchTooLarge(f"the file is larger than {max_bytes // 1024**2} MiB.")
    return bytes(body)


def _check_url(url: str, ports: tuple[int, ...]) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchRefused("it is not a URL that can be read.") from error
    if len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable():
        raise FetchRefused("it is not a URL that can be read.")
    if parts.scheme.lower() != "https":
        raise FetchRefused(
            "a reference must be an https URL, a base64 data URI, or the URL of one of this server's own results."
        )
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise FetchRefused("the URL must name a host and carry no user name or password.")
    port = 443 if port is None else port
    if port not in ports:
        raise FetchRefused("only the https port 443 is fetched from.")
    return parts.hostname, port


async def _checked_address(host: str, port: int, resolve: Resolver, is_allowed: Callable[[Address], bool]) -> str:
    try:
        found = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise FetchFailed("the host's name could not be resolved.") from error
    if not found or not all(_allowed(address, is_allowed) for address in found):
        raise FetchRefused("the URL's host is not on the public internet.")
    return found[0]


def _allowed(address: str, is_allowed: Callable[[Address], bool]) -> bool:
    return is_allowed(ipaddress.ip_address(address.partition("%")[0]))


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the checked address whatever name it is asked for, and to nothing else."""

    def __init__(self, host: str, address: str) -> None:
        self._host = host
        self._address = address
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A stream to the pinned address."""
        if host.strip("[]").lower() != self._host:
            raise httpcore.ConnectError(f"{host} was not checked")
        return await self._backend.connect_tcp(self._address, port, timeout, local_address, socket_options)
