"""Every client of the process, with a dead proxy in its environment and with one of DARKROOM_PROXY: what is local is
reached directly, all else by the proxy, and the environment is not read."""

import http.server
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from structlog.testing import capture_logs

from server.backends import proxies
from server.backends.fetch import FetchFailed, FetchRules, WebhookRules, fetch_image, post_webhook
from server.backends.gateway_link import ForwardedRequest, GatewayLink
from server.backends.object_storage import ObjectStorage
from server.backends.proxies import http_client, is_local, proxy_for, store_options
from server.backends.upstream import UpstreamClient
from server.cli.admin_client import request as ask_server
from server.errors import StartError
from server.settings import Settings
from server.telemetry.span_export import CollectorExporter
from server.telemetry.tracing import Tracing
from tests.support.harness import until
from tests.support.local_http import QuietHandler, running

DEAD = "http://127.0.0.1:1"
NAME = f"{'0' * 32}.png"


class Recorder(http.server.ThreadingHTTPServer):
    """Answers 404 to all, and keeps the first lines of requests: a proxy's have whole URLs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lines: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(QuietHandler):
    server: Recorder

    def _record(self) -> None:
        self.server.lines.append(self.requestline)
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST = do_HEAD = do_PUT = do_CONNECT = _record


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with running(Recorder()) as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine whose programs all have a proxy, which can't reach the machine itself."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, DEAD)
        monkeypatch.setenv(name.lower(), DEAD)
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("localhost", True), ("10.1.2.3", True), ("192.168.0.9", True), ("169.254.169.254", True),
        ("::1", True), ("fd00::5", True), ("8.8.8.8", False), ("2606:4700::1111", False), ("nowhere.invalid", False),
    ],
)  # fmt: skip
def test_what_is_local(host: str, local: bool) -> None:
    assert is_local(host) is local
    url = f"https://[{host}]/" if ":" in host else f"https://{host}/"
    assert proxy_for(url, "http://proxy.example:3128") == (None if local else "http://proxy.example:3128")
    assert proxy_for(url, None) is None


@pytest.mark.parametrize("proxy", [None, DEAD])
def test_a_store_on_this_machine_is_reached_directly(
    recorder: Recorder, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", recorder.url)
    with pytest.raises(FileNotFoundError):
        ObjectStorage("s3://bucket/p", lambda _: False, proxy).read(NAME)
    assert [line.split()[1] for line in recorder.lines] == [f"/bucket/p/00/{NAME}"]


def test_a_store_elsewhere_is_reached_by_the_proxy(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.invalid")
    with pytest.raises(FileNotFoundError):
        ObjectStorage("s3://bucket/p", lambda _: False, recorder.url).read(NAME)
    assert recorder.lines == [f"GET http://store.invalid/bucket/p/00/{NAME} HTTP/1.1"]


def test_without_an_endpoint_the_metadata_service_is_excluded() -> None:
    assert "169.254.0.0/16" in store_options(None, "http://proxy.example")["proxy_excludes"].split(",")
    assert store_options(None, None)["proxy_excludes"].startswith("*,")


async def test_upstreams_are_reached_by_the_rule(recorder: Recorder) -> None:
    for proxy in (None, DEAD):
        client = UpstreamClient([], os.environ, 5, proxy)
        assert (await client.http.get(f"{recorder.url}/v1/models")).status_code == 404
        await client.close()
    client = UpstreamClient([], os.environ, 5, recorder.url)
    assert (await client.http.get("http://upstream.invalid/v1/models")).status_code == 404
    await client.close()
    assert [line.split()[1] for line in recorder.lines] == [
        "/v1/models", "/v1/models", "http://upstream.invalid/v1/models",
    ]  # fmt: skip


async def test_images_are_fetched_and_webhooks_sent_by_the_rule(recorder: Recorder) -> None:
    async def elsewhere(host: str, port: int) -> list[str]:
        raise OSError("unknown here")

    async def public(host: str, port: int) -> list[str]:
        return ["8.8.8.8"]

    for resolve in (elsewhere, public):
        with pytest.raises(FetchFailed, match="ProxyError"):
            await fetch_image("https://a.example/a.png", FetchRules(True, 9, 60, resolve, proxy=recorder.url))
        with pytest.raises(FetchFailed, match="ProxyError"):
            await post_webhook("https://b.example/", b"x", {}, WebhookRules("public", recorder.url, 60, resolve))
    assert recorder.lines == [
        "CONNECT a.example:443 HTTP/1.1", "CONNECT b.example:443 HTTP/1.1",
        "CONNECT 8.8.8.8:443 HTTP/1.1", "CONNECT 8.8.8.8:443 HTTP/1.1",
    ]  # fmt: skip
    recorder.lines.clear()
    assert await post_webhook(f"{recorder.url}/hook", b"x", {}, WebhookRules("any", DEAD)) == 404
    assert recorder.lines == ["POST /hook HTTP/1.1"]
    with pytest.raises(FetchFailed, match="resolved"):  # a name of the local network that is not known here
        await post_webhook("https://intranet/", b"x", {}, WebhookRules("any", recorder.url, 60, elsewhere))


async def test_servers_of_a_cluster_reach_each_other_directly(recorder: Recorder) -> None:
    link = GatewayLink("secret")
    request = ForwardedRequest("POST", "/x", [], b"", "key", "http h 1 / 0")
    async with link.send(recorder.url, request, 0) as answer:
        assert answer.status == 404
    await link.close()


def test_commands_reach_their_server_directly(recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / "admin-key").write_text("x")
    port = recorder.server_address[1]
    settings = Settings(home=tmp_path, port=port, proxy=DEAD)
    with pytest.raises(StartError, match="404: that is no Darkroom server"):
        ask_server(settings, "GET", "/admin/status")
    assert recorder.lines == ["GET /admin/status HTTP/1.1"]


async def test_a_name_is_resolved_once_in_a_while(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(proxies, "is_local", lambda host: not asked.append(host))
    async with http_client(httpx.Timeout(5), DEAD) as client:
        for _ in range(3):
            await client.get(recorder.url)
    assert asked == ["127.0.0.1"]


def test_a_collector_on_this_machine_gets_its_spans(recorder: Recorder) -> None:
    tracing = Tracing(recorder.url)
    with tracing.request({}) as span:
        span.end("GET", "/x", 200, None, "req")
    tracing.stop()
    assert recorder.lines == ["POST /v1/traces HTTP/1.1"]


def test_a_collector_that_is_away_costs_one_line_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        away = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    sent: list[int] = []
    export = CollectorExporter.export

    def count(exporter: CollectorExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = export(exporter, spans)
        sent.append(len(spans))
        return result

    monkeypatch.setattr(CollectorExporter, "export", count)
    tracing = Tracing(away)
    with capture_logs() as lines:
        for number in range(3):
            with tracing.request({}) as span:
                span.end("GET", "/x", 200, None, "req")
            until(lambda number=number: len(sent) > number)
        tracing.stop()
    assert sent == [1, 1, 1]
    assert [line["event"] for line in lines] == ["the collector of traces does not take them; they are lost"]
