"""The outermost middleware: a request id, headers and metrics for every answer, a log line for all but reads
that succeed; 500 for exceptions."""

import errno
import math
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, EngineFailure, StorageFailed
from server.http.dialect import dialects_of, request_id_headers
from server.http.errors import ERROR_CODE, send_error
from server.money import format_money
from server.telemetry.call_trace import CLIENT_LEFT, CallTrace, begin_trace
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import RequestSpan, Tracing

log = structlog.stdlib.get_logger("darkroom.http")

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
RecordCall = Callable[[CallTrace, str, int, float, bool], None]  # route, status, seconds, replayed
PLAIN_ROUTES = frozenset({"/openapi.json"})  # the framework's own, which do not say that they were found
UNLOGGED = frozenset({"/healthz", "/readyz", "/metrics"})  # asked too often
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ObservabilityMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing, record: RecordCall) -> None:
        self.app = app
        self.metrics = metrics
        self.tracing = tracing
        self.record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; answer 500 for an exception that no handler caught."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at = time.perf_counter()
        request_id = f"req_{uuid.uuid4().hex}"
        status = 0
        replayed = False

        trace = begin_trace(request_id)

        async def send_with_headers(message: Message) -> None:
            nonlocal status, replayed
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                replayed = "idempotency-replayed" in headers
                for name in request_id_headers(dialects_of(scope)):
                    headers[name] = request_id
                headers["openai-version"] = "2020-10-01"
                headers["openai-processing-ms"] = str(round((time.perf_counter() - started_at) * 1000))
                if trace.wake_s:
                    headers["x-darkroom-wake-s"] = str(math.ceil(trace.wake_s))
            await send(message)

        with self._span(scope) as span, structlog.contextvars.bound_contextvars(**_log_names(request_id, span)):
            try:
                await self.app(scope, receive, send_with_headers)
            except Exception as error:
                log.exception("unhandled error", path=scope["path"])
                if status:
                    raise
                await send_error(_to_api_error(error, request_id), scope, receive, send_with_headers)
            finally:
                self._record_answer(scope, trace, status or CLIENT_LEFT, started_at, replayed=replayed)
                if span is not None:
                    span.end(scope["method"], _route(scope), status or CLIENT_LEFT, scope.get(ERROR_CODE), request_id)

    def _span(self, scope: Scope) -> AbstractContextManager[RequestSpan | None]:
        return nullcontext() if scope["path"] in UNLOGGED else self.tracing.request(Headers(scope=scope))

    def _record_answer(self, scope: Scope, trace: CallTrace, status: int, started_at: float, *, replayed: bool) -> None:
        """Count and log an answer: it has been sent, or nobody waits for it any more."""
        seconds = time.perf_counter() - started_at
        route = _route(scope)
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(route, method, status).inc()
        self.metrics.request_seconds.labels(route, method).observe(seconds)
        if replayed:
            self.metrics.replays.labels(route).inc()
        if (code := scope.get(ERROR_CODE)) is not None:
            self.metrics.count_refusal(route, code)
        if route not in UNLOGGED and (status >= 400 or trace.runs_model or scope["method"] not in {"GET", "HEAD"}):
            log.info("answer", method=scope["method"], path=scope["path"], **_log_values(trace, status, seconds))
        if trace.runs_model:
            goes_on = trace.runs
            trace.when_complete(lambda: self._finish(trace, route, status, started_at, replayed, goes_on=goes_on))

    def _finish(
        self, trace: CallTrace, route: str, status: int, started_at: float, replayed: bool, *, goes_on: bool
    ) -> None:
        """Record the request, of which nothing runs any more."""
        seconds = time.perf_counter() - started_at
        status = trace.status or status
        if goes_on:
            log.info("call ended", request=trace.request_id, **_log_values(trace, status, seconds))
        self.record(trace, route, status, seconds, replayed)


def _log_values(trace: CallTrace, status: int, seconds: float) -> dict[str, Any]:
    """Return the known facts of a call, for the log, without its prompt."""
    values: dict[str, Any] = {"status": status, "seconds": round(seconds, 3)}
    if trace.key_id is None:
        return values
    values |= {"key": trace.key_id, "model": trace.model, "job": trace.job, "code": trace.code}
    if trace.run_s is not None:
        values |= {"run_s": round(trace.run_s, 3), "queue_s": round(trace.queue_s or 0.0, 3)}
    if trace.images:
        values |= {"price": format_money(trace.price)}
    return {name: value for name, value in values.items() if value is not None}


def _route(scope: Scope) -> str:
    """Return the route for the labels of metrics: the raw path and arbitrary methods would make unbounded label
    values."""
    if (route := scope.get("route")) is not None:
        path: str = route.path
        return path
    return scope["path"] if scope["path"] in PLAIN_ROUTES else "unknown"


def _log_names(request_id: str, span: RequestSpan | None) -> dict[str, str]:
    """Return the fields of every line of the log that is written for this request."""
    trace_id = span.trace_id if span is not None else None
    return {"request": request_id} | ({"trace": trace_id} if trace_id is not None else {})


def _to_api_error(error: Exception, request_id: str) -> ApiError:
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:  # such as a form that finds no room in TMPDIR
        return StorageFailed(str(error))
    return EngineFailure(f"Something went wrong on the server (request {request_id}); nothing was charged.")
