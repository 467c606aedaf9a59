"""The server's own URL, of which the URLs of results are made. The Host header of a client is no part of it, unless the
operator has named that host."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import Request

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
