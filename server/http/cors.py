"""Which pages of other sites a browser lets call the API."""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

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
