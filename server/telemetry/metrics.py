"""The Prometheus metrics of /metrics."""

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

JOB_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
TOKEN_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Has its own registry, so that two servers can run in one process."""

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
            "Time that a successful image job ran on the device",
            ["model"],
            buckets=JOB_BUCKETS_S,
            registry=self.registry,
        )
        self.chats = Counter("darkroom_chats", "Chats by outcome", ["model", "outcome"], registry=self.registry)
        self.chat_tokens = Counter(
            "darkroom_chat_tokens",
            "Tokens of chats that ended, with any outcome",
            ["model", "kind"],
            registry=self.registry,
        )
        self.chat_run_seconds = Histogram(
            "darkroom_chat_run_seconds",
            "Time from a chat's admission to the batch to its last token",
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

        self._decoders_ended = Gauge(
            "darkroom_decoders_ended",
            "Picture decoders that ended before their picture was decoded",
            ["reason"],
            registry=self.registry,
        )

    def track_decoders(self, reasons: Iterable[str], ended: Callable[[str], float]) -> None:
        """Export how many decoders ended for each reason; `ended` is asked at each scrape."""
        for reason in reasons:
            self._decoders_ended.labels(reason).set_function(partial(ended, reason))

    def track_worker(self, worker: str, jobs: Callable[[], float], restarts: Callable[[], float]) -> None:
        """Export these two numbers of a worker; they are read at each scrape."""
        self._jobs.labels(worker).set_function(jobs)
        self._restarts.labels(worker).set_function(restarts)
