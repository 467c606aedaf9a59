"""Connections to one checked address, whatever a name resolves to later: directly or, to the internet, by a proxy."""

import base64
import ipaddress
import ssl
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import httpcore

from server.backends.public_addresses import is_public

# What a connection may end with on the way
LOST = (
    httpcore.NetworkError,
    httpcore.ProxyError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    ssl.SSLError,
)
MAX_ANSWER_BYTES = 64 * 1024  # of a proxy, before the tunnel


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the checked address of one host, and to nothing else.

    `address` is the host's name where only the proxy can resolve it. The proxy is told the address, not the name, so
    that it reaches what was checked.
    """

    def __init__(self, host: str, address: str, proxy: str | None = None) -> None:
        self._host = host
        self._address = address
        self._proxy = proxy if proxy is not None and not _is_local(address) else None
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the checked address. Raises ConnectError for another host, and for a proxy that refuses."""
        if host.strip("[]").lower() != self._host:
            raise httpcore.ConnectError(f"{host} was not checked")
        if self._proxy is None:
            return await self._backend.connect_tcp(self._address, port, timeout, local_address, socket_options)
        proxy = urlsplit(self._proxy)
        own_port = proxy.port or (443 if proxy.scheme == "https" else 80)
        stream = await self._backend.connect_tcp(proxy.hostname or "", own_port, timeout, local_address, socket_options)
        if proxy.scheme == "https":
            stream = await stream.start_tls(ssl.create_default_context(), proxy.hostname, timeout)
        target = f"[{self._address}]:{port}" if ":" in self._address else f"{self._address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *_authorization(proxy.username, proxy.password)]
        await stream.write("\r\n".join([*lines, "", ""]).encode(), timeout)
        await _read_answer(stream, timeout)
        return stream


async def _read_answer(stream: httpcore.AsyncNetworkStream, timeout: float | None) -> None:  # noqa: ASYNC109
    """Read the proxy's answer to its end: nothing else comes before the client has spoken."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = await stream.read(4096, timeout)
        answer += more
        if not more or len(answer) > MAX_ANSWER_BYTES:
            raise httpcore.ProxyError("the proxy has closed the connection")
    status = answer.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    if len(status) < 2 or not status[1].startswith("2"):
        await stream.aclose()
        raise httpcore.ProxyError(f"the proxy refuses: {' '.join(status[1:])}")


def _authorization(user: str | None, password: str | None) -> list[str]:
    if user is None:
        return []
    secret = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
    return [f"Proxy-Authorization: Basic {secret}"]


def _is_local(address: str) -> bool:
    """Return whether an address is this machine's or private; a name is neither: only the proxy can resolve it."""
    try:
        return not is_public(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return False
