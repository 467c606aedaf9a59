"""Small middleware around every route: which pages of other sites may call the API, the newline at the end of JSON, and
plain paths."""

import re
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import Forbidden
from server.http.dialect import find_dialect

PATHS = ("/v1/", "/cdn/")  # what needs a key, or a name that can't be guessed; so do the paths of dialects


class ApiCorsMiddleware(CORSMiddleware):
    """CORS for the API alone: answers that need no key are not for other sites to read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests to the API with CORS headers, and all others without."""
        path = scope.get("path", "")
        if scope["type"] == "http" and (path.startswith(PATHS) or find_dialect(scope, path)):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight. The refusal has the shape of every other error."""
        allowed = super().preflight_response(request_headers)
        if allowed.status_code == 200:
            return allowed
        error = Forbidden(
            "Pages of this origin may not call this server: DARKROOM_CORS_ORIGINS does not name it.",
            code="origin_not_allowed",
        )
        return JSONResponse(error.body(), error.status, {"Vary": "Origin"})


JSON = "application/json"


class LastNewlineMiddleware:
    """ASGI middleware: ends each JSON body with a newline."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, and add the newline to what it answers if that is JSON."""
        is_json = False

        async def send_with_newline(message: Message) -> None:
            nonlocal is_json
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_json = headers.get("content-type", "").partition(";")[0] == JSON and message["status"] != 304
                if is_json and (length := headers.get("content-length")) is not None:
                    headers["content-length"] = str(int(length) + 1)
            elif is_json and message["type"] == "http.response.body" and not message.get("more_body", False):
                message = {**message, "body": message.get("body", b"") + b"\n"}
            await send(message)

        await self.app(scope, receive, send_with_newline)


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
