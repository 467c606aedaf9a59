"""Paths of the API as its routes have them: clients that join a base URL and a path by hand double a slash or end in
one."""

import re
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

API = re.compile(r"/+v1(beta)?/")


class PlainPathsMiddleware:
    """ASGI middleware: takes doubled slashes and the last one off the paths of the API, and of nothing else, so that
    what a proxy guards by its path stays guarded."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request at its plain path."""
        if scope["type"] == "http" and API.match(scope["path"]):
            path = re.sub("/{2,}", "/", scope["path"]).rstrip("/")
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": quote(path).encode()}
        await self.app(scope, receive, send)
