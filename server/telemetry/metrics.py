"""The Prometheus metrics of /metrics. docs/reference/metrics.md lists them; deploy/ has a dashboard and alerts."""

import platform
from collections.abc import Sequence
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

JOB_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
REQUEST_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, *JOB_BUCKETS_S)
TOKEN_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
MAX_CODES = 200  # of errors; those of upstreams are not ours


class Metrics:
    """Has its own registry, so that two servers can run in one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of its own for each counter's start
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        build = Info("darkroom_build", "Version of Darkroom and of Python", registry=self.registry)
        build.info({"version": version("darkroom"), "python": platform.python_version()})
        self.requests = self._counter("requests", "Answers sent", "route", "method", "status")
        self.request_seconds = self._histogram(
            "request_seconds",
            "Time from a request's headers to the end of its answer",
            REQUEST_BUCKETS_S,
            "route",
            "method",
        )
        self._refusals = self._counter("refusals", "Error answers by code", "route", "code")
        self._codes: set[str] = set()
        self.replays = self._counter("replays", "Answers of earlier calls that were sent again", "route")
        self.moderation_refusals = self._counter(
            "moderation_refusals", "Requests and results that the policy refused", "policy", "stage"
        )
        self.calls = self._counter("image_calls", "Image calls by outcome", "model", "outcome")
        self.images = self._counter("pictures", "Images stored", "model")
        self.charged_cny = self._counter("charged_cny", "Money charged, in CNY", "model")
        self.queue_seconds = self._histogram(
            "queue_seconds", "Time that a job waited before it started on the device", JOB_BUCKETS_S, "kind", "model"
        )
        self.run_seconds = self._histogram(
            "image_run_seconds", "Time that a successful image job ran on the device", JOB_BUCKETS_S, "model"
        )
        self.chats = self._counter("chats", "Chats by outcome", "model", "outcome")
        self.chat_tokens = self._counter("chat_tokens", "Tokens of chats that ended, with any outcome", "model", "kind")
        self.chat_run_seconds = self._histogram(
            "chat_run_seconds", "Time from a chat's admission to the batch to its last token", JOB_BUCKETS_S, "model"
        )
        self.chat_first_token_seconds = self._histogram(
            "chat_first_token_seconds", "Time from a chat's request to its first token", TOKEN_BUCKETS_S, "model"
        )
        self.disk_free_bytes = Gauge(
            "darkroom_disk_free_bytes", "Room on the disk of the home, for others than root", registry=self.registry
        )

    def count_refusal(self, route: str, code: str) -> None:
        """Count an error answer. The codes of upstreams could be any number, and then count as `other`."""
        if code not in self._codes and len(self._codes) >= MAX_CODES:
            code = "other"
        self._codes.add(code)
        self._refusals.labels(route, code).inc()

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"darkroom_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"darkroom_{name}", what, labels, buckets=buckets, registry=self.registry)
