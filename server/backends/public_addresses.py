"""Which addresses are on the public internet, and connections to one checked address, directly or by a proxy.

The blocks are those of IANA's special-purpose registries (IPv4: RFC 6890 and later, IPv6: likewise), for any purpose,
and metadata services of clouds that sit on public addresses. Python's `ipaddress` has them too, but which of them
depends on its patch release; so both are asked.
"""

import base64
import ipaddress
import ssl
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import httpcore

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
SPECIAL = [
    ipaddress.ip_network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's WireServer
        "169.254.0.0/16",  # link-local, with the metadata services of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, with Oracle's metadata service
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "::/96",  # unspecified, loopback, IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 of a site
        "100::/64",  # discard
        "100:0:0:1::/64",  # dummy
        "2001::/23",  # protocol assignments: Teredo, ORCHID, AMT, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fc00::/7",  # unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local
        "ff00::/8",  # multicast
    )
]
# What a connection may end with on the way
LOST = (
    httpcore.NetworkError,
    httpcore.ProxyError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    ssl.SSLError,
)
MAX_ANSWER_BYTES = 64 * 1024  # of a proxy, before the tunnel


def is_public(address: Address) -> bool:
    """Return whether an address may be that of a server on the internet. Addresses that contain another one (mapped,
    6to4, NAT64) are not public."""
    return address.is_global and not any(address in block for block in SPECIAL)


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the checked address of one host, and to nothing else, whatever the name resolves to later.

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
