"""Traces of an app, as a collector gets them over HTTP."""

import gzip
import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.in_process import in_process
from tests.support.local_http import QuietHandler, running

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IMAGE = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256"}
CHAT = {"model": "starter-chat", "messages": [{"role": "user", "content": "Hi"}]}


class Collector(http.server.ThreadingHTTPServer):
    """Keeps all spans that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Span] = []

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def children(self, parent: Span) -> list[str]:
        return sorted(span.name for span in self.spans if span.parent_span_id == parent.span_id)


class Handler(QuietHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running(Collector()) as server:
        yield server


def url(collector: Collector) -> str:
    return f"http://127.0.0.1:{collector.server_address[1]}"


async def test_a_call_is_one_span_with_queue_run_and_store(collector: Collector, tmp_path: Path) -> None:
    async with in_process(tmp_path, tracing=url(collector)) as running:
        drawn = await running.client.post("/v1/images/generations", json=IMAGE)
        assert drawn.status_code == 200
        assert (await running.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await running.client.post("/v1/images/generations", json=IMAGE | {"model": "no"})).status_code == 404
        await running.client.get("/metrics")
    roots = [span for span in collector.spans if not span.parent_span_id]
    image, chat, refused = sorted(roots, key=lambda span: span.start_time_unix_nano)
    assert image.name == refused.name == "POST /v1/images/generations"
    assert collector.children(image) == ["queue", "run", "store"]
    assert collector.children(chat) == ["queue", "run"]
    assert collector.children(refused) == []
    attributes = {each.key: each.value for each in image.attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["darkroom.request_id"].string_value == drawn.headers["x-request-id"]
    assert {each.key: each.value.string_value for each in refused.attributes}["error.type"] == "model_not_found"


async def test_a_traceparent_is_continued_or_not_recorded(collector: Collector, tmp_path: Path) -> None:
    async with in_process(tmp_path, tracing=url(collector)) as running:
        for flags in ("01", "00"):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
            await running.client.get("/v1/models", headers=headers)
        await running.client.get("/v1/models", headers={"traceparent": "no such thing"})
    continued = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in continued] == [PARENT]
    assert len(collector.spans) == 2
