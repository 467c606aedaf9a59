"""Requests to URLs that callers name, if the operator allows them, guarded against SSRF: reference images are fetched,
webhooks are posted.

The host is resolved once, every address of it is checked, and the connection goes to a checked address
(with the host's name in SNI and certificate), so DNS rebinding between check and use has no effect. Images are fetched
by https alone; their redirects are followed here, not by the client, and checked the same way.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore

from server.backends.public_addresses import LOST, Address, PinnedBackend, is_public

MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
MAX_URL_LENGTH = 4096
MAX_WEBHOOK_LENGTH = 2000
Reach = Literal["off", "public", "any"]  # where webhooks may go
Resolver = Callable[[str, int], Awaitable[list[str]]]
# Its own threads: a DNS server that does not answer blocks one for 30 s.
DNS_EXECUTOR = ThreadPoolExecutor(8, thread_name_prefix="resolve")


@functools.cache
def tls_context_of(ca_file: str | None = None) -> ssl.SSLContext:
    """Build a context that trusts the system's certificates, or those of a file. Reading them takes tens of
    milliseconds: call it in a thread."""
    return ssl.create_default_context(cafile=ca_file)


class FetchRefused(Exception):
    """A URL that this server is not allowed to fetch."""


class FetchFailed(Exception):
    """A URL that could not be fetched."""


class FetchTooLarge(Exception):
    """A file over the size limit."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Return every address of a host. Raises OSError."""
    lookup = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    entries = await asyncio.get_running_loop().run_in_executor(DNS_EXECUTOR, lookup)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


@dataclass(frozen=True, slots=True)
class FetchRules:
    """Whether URLs are fetched, within which limits, how the addresses of hosts are found, and which are connected
    to."""

    allow: bool
    max_bytes: int
    timeout_s: float
    resolve: Resolver = resolve_host
    is_allowed: Callable[[Address], bool] = is_public
    ports: tuple[int, ...] = (443,)
    ca_file: str | None = None
    proxy: str | None = None


async def fetch_image(url: str, rules: FetchRules) -> bytes:
    """Return the body of a URL, fetched by the proxy if there is one. Raises FetchRefused before anything is sent,
    FetchFailed and FetchTooLarge afterwards."""
    _check_url(url, rules.ports)
    if not rules.allow:
        raise FetchRefused(
            "this server does not fetch URLs (DARKROOM_FETCH is off): send the image as a base64 data URI, as a file "
            "to /v1/images/edits, or as the URL of one of this server's own results."
        )
    try:
        async with asyncio.timeout(rules.timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                body, url = await _get_once(url, rules)
                if body is not None:
                    return body
            raise FetchFailed(f"the URL redirects more than {MAX_REDIRECTS} times.")
    except TimeoutError as error:
        raise FetchFailed(f"the URL did not answer within {rules.timeout_s:g} s.") from error


async def _get_once(url: str, rules: FetchRules) -> tuple[bytes | None, str]:
    """Send one GET, and return the body and its URL, or None and the URL of the redirect."""
    host, port = _check_url(url, rules.ports)
    address = await resolve_checked(host, port, rules.resolve, rules.is_allowed, rules.proxy)
    tls_context = await asyncio.to_thread(tls_context_of, rules.ca_file)
    headers = [("Accept", "image/*"), ("Accept-Encoding", "identity"), ("User-Agent", "Darkroom")]
    pool = httpcore.AsyncConnectionPool(
        ssl_context=tls_context, network_backend=PinnedBackend(host, address, rules.proxy)
    )
    try:
        async with pool, pool.stream("GET", url, headers=headers) as response:
            if response.status in REDIRECTS:
                return None, _redirect_url(url, response)
            if response.status != 200:
                raise FetchFailed(f"the URL answered with status {response.status}.")
            return await _read_limited(response, rules.max_bytes), url
    except LOST as error:
        raise FetchFailed(f"the URL could not be fetched: {type(error).__name__}.") from error


def _redirect_url(url: str, response: httpcore.Response) -> str:
    locations = [value for name, value in response.headers if name.lower() == b"location"]
    try:
        return urljoin(url, locations[0].decode("latin-1"))
    except (IndexError, ValueError) as error:
        raise FetchFailed("the URL redirects to nowhere.") from error


async def _read_limited(response: httpcore.Response, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > max_bytes:
            raise FetchTooLarge(f"the file is larger than {max_bytes // 1024**2} MiB.")
    return bytes(body)


def _split_url(url: str, max_length: int) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL and its port. Raises FetchRefused."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchRefused("it is not a URL that can be read.") from error
    if len(url) > max_length or not url.isascii() or not url.isprintable():
        raise FetchRefused("it is not a URL that can be read.")
    return parts, port


def _check_url(url: str, ports: tuple[int, ...]) -> tuple[str, int]:
    parts, port = _split_url(url, MAX_URL_LENGTH)
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


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """Where webhooks may go, by which proxy, how long one may take, and how the addresses of hosts are found."""

    reach: Reach
    proxy: str | None = None
    timeout_s: float = 15.0
    resolve: Resolver = resolve_host


def check_webhook_url(url: str, reach: Reach) -> tuple[str, int]:
    """Return the host and port of a webhook's URL. Raises FetchRefused for a URL that no webhook may go to, at any
    address."""
    parts, port = _split_url(url, MAX_WEBHOOK_LENGTH)
    if not parts.hostname:
        raise FetchRefused("it is not a URL that can be read.")
    if parts.username is not None or parts.password is not None:
        raise FetchRefused("it must carry no user name or password.")
    scheme = parts.scheme.lower()
    if scheme not in {"https", "http"} or (reach == "public" and (scheme != "https" or port not in {None, 443})):
        raise FetchRefused("webhooks go to https URLs at port 443.")
    return parts.hostname, port or (443 if scheme == "https" else 80)


async def post_webhook(url: str, content: bytes, headers: Mapping[str, str], rules: WebhookRules) -> int:
    """Post to a URL, by the proxy if there is one and the host is not local, and return the status of the answer, whose
    body is not read; redirects are not followed. Raises FetchRefused and FetchFailed."""
    host, port = check_webhook_url(url, rules.reach)
    allowed: Callable[[Address], bool] = is_public if rules.reach == "public" else lambda _: True
    try:
        async with asyncio.timeout(rules.timeout_s):
            address = await resolve_checked(host, port, rules.resolve, allowed, rules.proxy)
            tls_context = await asyncio.to_thread(tls_context_of)
            backend = PinnedBackend(host, address, rules.proxy)
            pool = httpcore.AsyncConnectionPool(ssl_context=tls_context, network_backend=backend)
            sent = [("Content-Type", "application/json"), ("User-Agent", "Darkroom"), *headers.items()]
            async with pool, pool.stream("POST", url, headers=sent, content=content) as response:
                return response.status
    except TimeoutError as error:
        raise FetchFailed(f"the URL did not answer within {rules.timeout_s:g} s.") from error
    except LOST as error:
        raise FetchFailed(f"the URL could not be reached: {type(error).__name__}.") from error


async def resolve_checked(
    host: str, port: int, resolve: Resolver, is_allowed: Callable[[Address], bool], proxy: str | None = None
) -> str:
    """Return an address of the host, all of whose addresses are allowed. A name that can't be resolved here is returned
    itself if there is a proxy, which may know it. Raises FetchRefused and FetchFailed."""
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        if proxy is not None and "." in host:  # the names of a local network have no dot, or are known here
            return host
        raise FetchFailed("the host's name could not be resolved.") from error
    if not addresses or not all(is_allowed(ipaddress.ip_address(each.partition("%")[0])) for each in addresses):
        raise FetchRefused("the URL's host is not on the public internet.")
    return addresses[0]
