"""The addresses of a request behind proxies: the server's own URL, of which the URLs of results are made, and the
client's."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFIX = "darkroom.prefix"  # in the scope: the path below which the client finds the server; missing for none
NAMED_HOST = "darkroom.named_host"  # in the scope, if a trusted proxy has named the host that the client asked

THIS_MACHINE = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.ASCII)


def own_address(request: Request, public_urls: Sequence[str]) -> str:
    """Return a URL without a slash at the end: the public one that the request names, or the first.

    Without public URLs it is what a trusted proxy says that the client asked. Without one it is the address at which
    the connection arrived: its client can reach that. Only this machine's own names are taken from the request, since
    ports may be mapped (Docker, ssh).
    """
    host = request.headers.get("host", "").lower()
    if public_urls:
        named = (url for url in public_urls if urlsplit(url).netloc.lower() == host)
        return next(named, public_urls[0]).rstrip("/")
    scheme, prefix = request.scope["scheme"], request.scope.get(PREFIX, "")
    if NAMED_HOST in request.scope or THIS_MACHINE.fullmatch(host):
        return f"{scheme}://{host}{prefix}"
    address, port = request.scope["server"]
    host = f"[{address}]" if ":" in address else address
    return f"{scheme}://{host}{'' if port is None else f':{port}'}{prefix}"


Network = IPv4Network | IPv6Network

TRUSTED_BY_DEFAULT = "127.0.0.1,::1"

HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)
PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
PORT = re.compile(r"\d{1,5}", re.ASCII)
X_FORWARDED = "x-forwarded-"
DEFAULT_PORTS = {"http": "80", "https": "443"}
PAIR = re.compile(r'\s*([\w!#$%&\'*+.^`|~-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*([;,]|$)', re.ASCII)  # of Forwarded


class ProxyHeadersMiddleware:
    """ASGI middleware: believes trusted proxies, and takes the path of a public URL off a request's."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network], public_urls: Sequence[str]) -> None:
        self._app = app
        self._trusted = trusted
        self._public_urls = public_urls
        self._paths = [path for url in public_urls if (path := urlsplit(url).path.rstrip("/"))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as the client has sent it."""
        if scope["type"] == "http":
            scope = self._as_sent(scope)
            if prefix := urlsplit(own_address(Request(scope), self._public_urls)).path:
                send = _with_location_below(prefix, send)
        await self._app(scope, receive, send)

    def _as_sent(self, scope: Scope) -> Scope:
        paths = self._paths
        if scope.get("client") and is_trusted(scope["client"][0], self._trusted):
            forwarded = _forwarded_values(scope)
            scope = {**scope, **_address(scope, forwarded), "client": self._client(scope, forwarded)}
            if PATH.fullmatch(prefix := _last_value(forwarded, "prefix").rstrip("/")):
                scope[PREFIX] = prefix
                paths = [prefix, *paths]
        for path in paths:
            if f"{scope['path']}/".startswith(f"{path}/"):
                below = scope["path"][len(path) :] or "/"
                return {
                    **scope,
                    PREFIX: path,
                    "path": below,
                    "raw_path": _raw_below(scope, path) or quote(below).encode(),
                }
        return scope

    def _client(self, scope: Scope, forwarded: dict[str, str]) -> tuple[str, int]:
        """Return the nearest address that is no trusted proxy's."""
        client: tuple[str, int] = scope["client"]
        for each in reversed([name for name in forwarded.get("for", "").split(",") if name.strip()]):
            if (address := _host_of(each.strip())) is None:
                break  # "unknown", or made up: the proxy that has said it is the last one known
            client = (address, 0)
            if not is_trusted(address, self._trusted):
                break
        return client


def trusted_networks(forwarded_allow_ips: str) -> tuple[Network, ...]:
    """Return the proxies in FORWARDED_ALLOW_IPS: addresses, networks, or * for every address."""
    names = [name.strip() for name in forwarded_allow_ips.split(",")]
    if "*" in names:
        return ip_network("0.0.0.0/0"), ip_network("::/0")
    return tuple(network for name in names if (network := _network(name)) is not None)


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    """Return whether an address is in one of these networks. A socket's path is in none."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return any(ip in network for network in trusted)


def _forwarded_values(scope: Scope) -> dict[str, str]:
    """Return what the proxies say, by the end of the name of its X-Forwarded header, or by that of `Forwarded` if there
    is none of the former: a proxy that sets one kind may pass on the other one of a stranger."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    by_header = [(name[len(X_FORWARDED) :], value) for name, value in headers if name.startswith(X_FORWARDED)]
    forwarded = (pair for name, value in headers if name == "forwarded" for pair in PAIR.findall(value))
    found: dict[str, str] = {}
    for key, text in by_header or ((name.lower(), value.strip('"')) for name, value, _ in forwarded):
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _address(scope: Scope, forwarded: dict[str, str]) -> Scope:
    """Return the scheme and the Host header that the client used."""
    scheme = _last_value(forwarded, "proto").lower()
    scheme = scheme if scheme in DEFAULT_PORTS else scope["scheme"]
    headers = dict(scope["headers"])
    named = _last_value(forwarded, "host")
    is_named = HOST.fullmatch(named) is not None
    host = named if is_named else headers.get(b"host", b"").decode("latin-1")
    port = _last_value(forwarded, "port")
    if host and not re.search(r":\d+$", host) and PORT.fullmatch(port) and port != DEFAULT_PORTS[scheme]:
        host = f"{host}:{port}"
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    changed = {"scheme": scheme, "headers": [*([(b"host", host.encode("latin-1"))] if host else []), *others]}
    return {**changed, NAMED_HOST: True} if is_named else changed


def _with_location_below(prefix: str, send: Send) -> Send:
    """Send the paths of Location headers as the client has to ask for them."""

    async def send_below(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, prefix.encode() + value if name.lower() == b"location" and value.startswith(b"/") else value)
                for name, value in message["headers"]
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_below


def _last_value(forwarded: dict[str, str], name: str) -> str:
    """Return what the nearest proxy says: each one adds at the end."""
    return forwarded.get(name, "").rpartition(",")[2].strip()


def _host_of(name: str) -> str | None:
    """Return the address of an item of X-Forwarded-For, which may have a port; None for what is no address."""
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        ip_address(name)
    except ValueError:
        return None
    return name


def _raw_below(scope: Scope, path: str) -> bytes | None:
    raw: bytes = scope.get("raw_path") or b""
    return (raw[len(path) :] or b"/") if raw.startswith(path.encode()) else None


def _network(name: str) -> Network | None:
    try:
        return ip_network(name)
    except ValueError:
        return None  # a socket's path
