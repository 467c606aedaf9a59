"""The outermost middleware: a request id, headers, a log line and metrics for every answer; 500 for exceptions."""

import errno
import time
import uuid

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, EngineFailure, StorageFailed
from server.http.errors import ERROR_CODE, send_error
from server.telemetry.metrics import Metrics

log = structlog.stdlib.get_logger("darkroom.http")

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
CLIENT_LEFT = 499  # before its status was known, as nginx has it
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ObservabilityMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; answer 500 for an exception that no handler caught."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at = time.perf_counter()
        request_id = f"req_{uuid.uuid4().hex}"
        status = 0
        replayed = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, replayed
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                replayed = "idempotency-replayed" in headers
                headers["x-request-id"] = headers["request-id"] = request_id  # OpenAI's name and Anthropic's
                headers["openai-version"] = "2020-10-01"
                headers["openai-processing-ms"] = str(round((time.perf_counter() - started_at) * 1000))
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self.app(scope, receive, send_with_headers)
            except Exception as error:
                log.exception("unhandled error", path=scope["path"])
                if status:
                    raise
                await send_error(_to_api_error(error, request_id), scope, send_with_headers)
            finally:
                self._record(scope, status or CLIENT_LEFT, time.perf_counter() - started_at, replayed=replayed)

    def _record(self, scope: Scope, status: int, seconds: float, *, replayed: bool) -> None:
        # the raw path and arbitrary methods would make unbounded label values
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(route, method, status).inc()
        self.metrics.request_seconds.labels(route, method).observe(seconds)
        if replayed:
            self.metrics.replays.labels(route).inc()
        if (code := scope.get(ERROR_CODE)) is not None:
            self.metrics.count_refusal(route, code)
        if route not in {"/healthz", "/readyz", "/metrics"}:
            log.info("answer", method=scope["method"], path=scope["path"], status=status, seconds=round(seconds, 3))


def _to_api_error(error: Exception, request_id: str) -> ApiError:
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:  # such as a form that finds no room in TMPDIR
        return StorageFailed(str(error))
    return EngineFailure(f"Something went wrong on the server (request {request_id}); nothing was charged.")
