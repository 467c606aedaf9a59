"""Calls through a proxy that cuts idle connections: one charge and one image, and how keepalive prevents the cut."""

import base64
import concurrent.futures
import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from PIL import Image

from tests.e2e.test_images_by_sdk import image
from tests.support.harness import PLAIN, REPOSITORY, MakeServer, Server, assert_clean, charges, suspended, until

PATH = "/v1/images/generations"
BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "model": "alpha-image-2-count"}
IDLE_S = 1.5  # 30 times the server's keepalive_s, for busy machines


@dataclass
class Proxy:
    """The proxy process."""

    process: subprocess.Popen[str]
    port: int
    cuts: int = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_cut(self) -> None:
        """Wait until it has cut a connection."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "cut\n"
        self.cuts += 1

    def stop(self) -> int:
        """How many connections it has cut."""
        assert self.process.stdout is not None
        self.process.terminate()
        return self.cuts + self.process.stdout.read().count("cut")


@pytest.fixture(scope="module")
def server(make_tiny: MakeServer) -> Server:
    return make_tiny(PLAIN, keepalive_s="0.05", retry_grace_s="100")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    command = [sys.executable, "-m", "tests.support.idle_proxy", str(server.port), str(IDLE_S)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    yield Proxy(process, int(process.stdout.readline()))
    process.kill()


def sdk(server: Server, proxy: Proxy, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{proxy.base}/v1", api_key=server.key, **options)


def download(server: Server, url: str) -> Image.Image:
    path = httpx.URL(url).path
    return Image.open(
        io.BytesIO(httpx.get(f"{server.base}{path}", timeout=60, trust_env=False).raise_for_status().content)
    )


@contextlib.contextmanager
def idle(server: Server, wait: Callable[[], object]) -> Iterator[None]:
    """Hold the call of this block in the queue until `wait` has returned."""

    def hold_job() -> None:
        with suspended(worker_pid):
            ready.set()
            until(lambda: server.readiness()["jobs"] == 1)
            wait()

    server.wait_ready()  # a test before may have killed its worker
    worker_pid, ready = server.readiness()["worker_pid"], threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        resumed = pool.submit(hold_job)
        ready.wait()
        yield
        resumed.result()


def test_the_sdks_retries_get_the_image_of_the_call_that_was_cut(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    client = sdk(server, proxy, max_retries=20)
    with idle(server, proxy.wait_cut):
        answer = client.images.generate(**BODY)
    assert proxy.stop() >= 1
    assert answer.data
    assert answer.data[0].url
    assert download(server, answer.data[0].url).size == (256, 256)
    assert charges(server) == before + 1


def test_an_idempotency_key_does_it_for_any_client(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    headers = {"Authorization": f"Bearer {server.key}", "Idempotency-Key": '"mine"'}
    disconnects, answer = 0, None
    with idle(server, proxy.wait_cut):
        while answer is None:
            try:
                answer = httpx.post(f"{proxy.base}{PATH}", json=BODY, headers=headers, timeout=280, trust_env=False)
            except httpx.RemoteProtocolError:
                disconnects += 1
    assert proxy.stop() == disconnects >= 1
    assert answer.status_code == 200
    assert download(server, answer.json()["data"][0]["url"]).size == (256, 256)
    assert charges(server) == before + 1


def test_whitespace_keeps_a_connection_open_on_request(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    client = sdk(server, proxy, max_retries=0)
    with idle(server, lambda: time.sleep(2 * IDLE_S)):
        answer = client.images.with_raw_response.generate(**BODY, extra_headers={"X-Keepalive": "1"})
    assert proxy.stop() == 0
    assert answer.text.startswith("  ")
    assert answer.headers["x-darkroom-job"].startswith("img_")
    parsed = answer.parse()
    assert parsed.data
    assert parsed.data[0].url
    assert download(server, parsed.data[0].url).size == (256, 256)
    assert charges(server) == before + 1


def test_keepalive_can_be_set_for_a_key(server: Server) -> None:
    secret = server.new_key("behind a proxy", keepalive=True)
    with server.http(secret) as client:
        with idle(server, lambda: time.sleep(IDLE_S)):
            kept_alive = client.post(PATH, json=BODY)
        with idle(server, lambda: time.sleep(1)):
            plain = client.post(PATH, json=BODY, headers={"X-Keepalive": "0"})
        refused = client.post(PATH, json={**BODY, "size": "huge"})
    assert kept_alive.text.startswith("  ")
    assert kept_alive.json()["data"]
    assert plain.text.startswith("{")
    assert refused.status_code == 400  # nothing is sent before the call is admitted


def test_comments_keep_a_stream_alive(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    client = sdk(server, proxy, max_retries=0)
    with idle(server, lambda: time.sleep(2 * IDLE_S)):
        *_, last = client.images.generate(**BODY, stream=True)
    assert proxy.stop() == 0
    assert last.type == "image_generation.completed"
    assert Image.open(io.BytesIO(base64.b64decode(last.b64_json))).size == (256, 256)
    assert charges(server) == before + 1


def test_a_failure_after_whitespace_closes_the_connection_and_the_retry_gets_the_error(server: Server) -> None:
    before = charges(server)
    keepalive = {"X-Keepalive": "1"}
    response_started = threading.Event()
    hooks = {"response": [lambda _: response_started.set()]}

    def generate(retries: int) -> Any:
        with httpx.Client(event_hooks=hooks, timeout=280, trust_env=False) as http_client:
            client = server.openai(max_retries=retries, http_client=http_client)
            return client.images.generate(**BODY, extra_body={"seed": 8}, extra_headers=keepalive)

    for retries, error in ((1, openai.InternalServerError), (0, openai.APIConnectionError)):
        until(lambda: server.readiness()["status"] == "ready")
        response_started.clear()
        worker_pid = server.readiness()["worker_pid"]
        with concurrent.futures.ThreadPoolExecutor() as pool, suspended(worker_pid):
            call = pool.submit(generate, retries)
            assert response_started.wait(120)
            os.kill(worker_pid, signal.SIGKILL)
            raised = call.exception()
        assert type(raised) is error
        if isinstance(raised, openai.InternalServerError):
            assert raised.code == "worker_died"
    assert charges(server) == before


PARTIALS = [(route, partials) for route in ("generate", "edit") for partials in range(4)]


@pytest.mark.parametrize(("route", "partials"), PARTIALS)
def test_the_sdk_iterates_previews_and_then_the_image(server: Server, route: str, partials: int) -> None:
    until(lambda: server.readiness()["status"] == "ready")
    client = server.openai()
    given = {"image": image(256, 256), "extra_body": {"steps": 16}} if route == "edit" else {}
    stream = getattr(client.images, route)(
        **BODY, stream=True, partial_images=partials, **{"extra_body": {"steps": 8}, **given}
    )
    *previews, last = list(stream)
    kind = "image_edit" if route == "edit" else "image_generation"
    assert [event.type for event in previews] == [f"{kind}.partial_image"] * partials
    assert [event.partial_image_index for event in previews] == list(range(partials))
    for event in previews:
        preview = Image.open(io.BytesIO(base64.b64decode(event.b64_json)))
        assert preview.width == preview.height <= 256
        assert (event.size, event.background, event.output_format) == ("256x256", "opaque", "png")
    assert last.type == f"{kind}.completed"
    assert Image.open(io.BytesIO(base64.b64decode(last.b64_json))).size == (256, 256)


def test_the_ledger_is_clean_after_all_that(server: Server) -> None:
    assert_clean(server)
