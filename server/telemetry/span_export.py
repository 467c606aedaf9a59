"""Spans on their way to a collector. One that is away is named once an hour, and not waited for at the end.

Apart from `tracing`, as what it imports is installed by the extra `[tracing]` alone.
"""

import logging
import time
from collections.abc import Sequence

import requests
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = structlog.stdlib.get_logger("darkroom.tracing")

TIMEOUT_S = 2.0  # of a batch, with its repeats
SAID_EVERY_S = 3600.0


class CollectorExporter(SpanExporter):
    """Sends spans to a collector by OTLP over HTTP, by `proxy` if it is not None."""

    def __init__(self, endpoint: str, proxy: str | None) -> None:
        session = requests.Session()
        session.trust_env = False  # server.backends.proxies says by which way a host is reached
        session.proxies = {} if proxy is None else {"http": proxy, "https": proxy}
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint, session=session, timeout=TIMEOUT_S)
        self._said_at: float | None = None
        self.is_away = False
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # four lines for each batch

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch of spans to the collector, and return whether it took them."""
        result = self._exporter.export(spans)
        self.is_away = result is not SpanExportResult.SUCCESS
        now = time.monotonic()
        if self.is_away and (self._said_at is None or now - self._said_at >= SAID_EVERY_S):
            self._said_at = now
            log.warning("the collector of traces does not take them; they are lost", collector=self._endpoint)
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
