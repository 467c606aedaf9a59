"""Traces by OpenTelemetry: a span for each request, with its wait, its run on the device and its storing as children.

Off until DARKROOM_TRACING names a collector. A `traceparent` header is honoured: the span continues the caller's trace,
and is not recorded if the caller's is not.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry.trace import NoOpTracer, Span, SpanKind, StatusCode, Tracer, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pipelines.protocol.machine import extra_command
from server.errors import StartError

PROPAGATOR = TraceContextTextMapPropagator()
S_IN_NS = 1_000_000_000


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str | None:
        """Return the trace's id for the log; None if nothing is recorded."""
        return format_trace_id(self._span.get_span_context().trace_id) if self._span.is_recording() else None

    def end(self, method: str, route: str, status: int, code: str | None, request_id: str) -> None:
        """Write the span's name and attributes, once the route and the answer are known."""
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes(
            {
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": status,
                "darkroom.request_id": request_id,
            }
        )
        if code is not None:
            self._span.set_attribute("error.type", code)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)


class Tracing:
    """Records traces. `endpoint` is the base URL of a collector that takes OTLP over HTTP; None for no traces. `proxy`
    is the way to it, if it is not reached directly. Raises StartError."""

    def __init__(self, endpoint: str | None = None, proxy: str | None = None) -> None:
        self._tracer: Tracer = NoOpTracer()
        self._shut_down: Callable[[], None] = lambda: None
        if endpoint is not None:
            self._export_to(endpoint, proxy)

    def _export_to(self, endpoint: str, proxy: str | None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            from server.telemetry.span_export import CollectorExporter
        except ImportError as error:
            raise StartError(f"DARKROOM_TRACING needs more packages: {extra_command('tracing')}") from error
        resource = Resource.create({"service.name": "darkroom", "service.version": version("darkroom")})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = CollectorExporter(f"{endpoint.rstrip('/')}/v1/traces", proxy)
        provider.add_span_processor(BatchSpanProcessor(exporter))

        def shut_down() -> None:
            """Send the rest, unless the collector was away just now: its thread ends with the process."""
            if exporter.is_away:
                exporter.shutdown()
            else:
                provider.shutdown()

        self._tracer, self._shut_down = provider.get_tracer("darkroom"), shut_down

    @contextmanager
    def request(self, headers: Mapping[str, str]) -> Iterator[RequestSpan]:
        """Open the span of a request; work within it, in other tasks too, becomes its children."""
        parent = PROPAGATOR.extract(headers)
        with self._tracer.start_as_current_span("request", context=parent, kind=SpanKind.SERVER) as span:
            yield RequestSpan(span)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Open a child span for the work in the block."""
        with self._tracer.start_as_current_span(name):
            yield

    def phase(self, name: str, seconds: float, ended_ago_s: float = 0.0) -> None:
        """Record a child span that took `seconds`, and ended `ended_ago_s` ago."""
        end = time.time_ns() - int(ended_ago_s * S_IN_NS)
        self._tracer.start_span(name, start_time=end - int(seconds * S_IN_NS)).end(end)

    def stop(self) -> None:
        """Send the spans that have not been sent. Blocks."""
        self._shut_down()
