"""The outermost layer: a request id, headers, a log line and metrics for every answer, and no exception past it."""

import json
import time
import uuid
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, EngineFailure

log = structlog.stdlib.get_logger("darkroom.http")

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
JOB_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
TOKEN_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """What /metrics shows. One registry per server, so that two can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "darkroom_requests", "Answers sent", ["route", "method", "status"], registry=self.registry
        )
        self.calls = Counter(
            "darkroom_image_calls", "Image calls by outcome", ["model", "outcome"], registry=self.registry
        )
        self.pictures = Counter("darkroom_pictures", "Pictures stored", ["model"], registry=self.registry)
        self.run_seconds = Histogram(
            "darkroom_image_run_seconds",
            "Time that a successful image job had the device",
            ["model"],
            buckets=JOB_BUCKETS_S,
            registry=self.registry,
        )
        self.chats = Counter("darkroom_chats", "Chats by outcome", ["model", "outcome"], registry=self.registry)
        self.chat_tokens = Counter(
            "darkroom_chat_tokens",
            "Tokens of chats that ended, however they did",
            ["model", "kind"],
            registry=self.registry,
        )
        self.chat_run_seconds = Histogram(
            "darkroom_chat_run_seconds",
            "Time from a chat's place in the batch to its last token",
            ["model"],
            buckets=JOB_BUCKETS_S,
            registry=self.registry,
        )
        self.chat_first_token_seconds = Histogram(
            "darkroom_chat_first_token_seconds",
            "Time from a chat's request to its first token",
            ["model"],
            buckets=TOKEN_BUCKETS_S,
            registry=self.registry,
        )
        self._jobs = Gauge("darkroom_jobs", "Jobs waiting or running", ["worker"], registry=self.registry)
        self._restarts = Gauge(
            "darkroom_worker_restarts", "Times a worker died and was restarted", ["worker"], registry=self.registry
        )

    def watch(self, worker: str, jobs: Callable[[], float], restarts: Callable[[], float]) -> None:
        """Read these two of a worker when somebody asks."""
        self._jobs.labels(worker).set_function(jobs)
        self._restarts.labels(worker).set_function(restarts)


class Observe:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; answer 500 in OpenAI's body if anything got past the handlers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = f"req_{uuid.uuid4().hex}"
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-version"] = "2020-10-01"
                headers["openai-processing-ms"] = str(round((time.perf_counter() - began) * 1000))
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self.app(scope, receive, send_with_headers)
            except Exception:
                log.exception("unhandled error", path=scope["path"])
                if status:
                    raise
                fault = EngineFailure(
                    f"Something went wrong on the server (request {request_id}); nothing was charged."
                )
                await send_error(fault, send_with_headers)
            finally:
                self._account(scope, status or 499, time.perf_counter() - began)

    def _account(self, scope: Scope, status: int, seconds: float) -> None:
        # never the raw path, nor any word as a method: their values have no bound
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(route, method, status).inc()
        if route not in {"/healthz", "/readyz", "/metrics"}:
            log.info("answer", method=scope["method"], path=scope["path"], status=status, seconds=round(seconds, 3))


async def send_error(error: ApiError, send: Send) -> None:
    """Answer with an error from plain ASGI."""
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    start = {
        "type": "http.response.start",
        "status": error.status,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
