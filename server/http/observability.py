"""The outermost middleware: a request id, headers, a log line and metrics for every answer; 500 for exceptions."""

import json
import time
import uuid

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, EngineFailure
from server.telemetry.metrics import Metrics

log = structlog.stdlib.get_logger("darkroom.http")

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ObservabilityMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; answer 500 in OpenAI's error format for an exception that no handler caught."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at = time.perf_counter()
        request_id = f"req_{uuid.uuid4().hex}"
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-version"] = "2020-10-01"
                headers["openai-processing-ms"] = str(round((time.perf_counter() - started_at) * 1000))
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self.app(scope, receive, send_with_headers)
            except Exception:
                log.exception("unhandled error", path=scope["path"])
                if status:
                    raise
                error = EngineFailure(
                    f"Something went wrong on the server (request {request_id}); nothing was charged."
                )
                await send_error(error, send_with_headers)
            finally:
                self._record(scope, status or 499, time.perf_counter() - started_at)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # the raw path and arbitrary methods would make unbounded label values
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(route, method, status).inc()
        if route not in {"/healthz", "/readyz", "/metrics"}:
            log.info("answer", method=scope["method"], path=scope["path"], status=status, seconds=round(seconds, 3))


async def send_error(error: ApiError, send: Send) -> None:
    """Send an error as an ASGI response, without the web framework."""
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    start = {
        "type": "http.response.start",
        "status": error.status,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
