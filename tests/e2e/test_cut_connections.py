"""Through a proxy that cuts idle connections: one charge, one picture, delivered. And what keeps it from cutting."""

import base64
import concurrent.futures
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from PIL import Image

from tests.e2e.test_faults import MakeServer, assert_clean, until
from tests.e2e.test_images_by_sdk import picture
from tests.support.harness import REPOSITORY, Server, charges

PATH = "/v1/images/generations"
BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "model": "alpha-image-2-count"}
STEPS = 200
LONG = {**BODY, "steps": STEPS}


@dataclass
class Proxy:
    """The proxy in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> int:
        """How many connections it has cut."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[0].count("cut")


@pytest.fixture(scope="module")
def server(make_tiny: MakeServer) -> Server:
    return make_tiny(keepalive_s="0.05", retry_grace_s="100")


@pytest.fixture(scope="module")
def idle_s(server: Server) -> float:
    """A third of what the long call takes on this machine: the proxy can't but cut it."""
    with server.http() as client:
        assert client.post(PATH, json=BODY).status_code == 200
        began = time.monotonic()
        assert client.post(PATH, json=LONG).status_code == 200
    return (time.monotonic() - began) / 3


@pytest.fixture
def proxy(server: Server, idle_s: float) -> Iterator[Proxy]:
    command = [sys.executable, "-m", "tests.support.idle_proxy", str(server.port), str(idle_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    yield Proxy(process, int(process.stdout.readline()))
    process.kill()


def sdk(server: Server, proxy: Proxy, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{proxy.base}/v1", api_key=server.key, **options)


def opened(server: Server, url: str) -> Image.Image:
    path = httpx.URL(url).path
    return Image.open(io.BytesIO(httpx.get(f"{server.base}{path}", trust_env=False).raise_for_status().content))


def test_the_sdks_own_retries_get_the_picture_of_the_call_that_was_cut(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    client = sdk(server, proxy, max_retries=20)
    answer = client.images.generate(**BODY, extra_body={"steps": STEPS})
    assert proxy.stop() >= 1
    assert answer.data
    assert answer.data[0].url
    assert opened(server, answer.data[0].url).size == (256, 256)
    assert charges(server) == before + 1


def test_an_idempotency_key_does_it_for_any_client(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    headers = {"Authorization": f"Bearer {server.key}", "Idempotency-Key": '"mine"'}
    ids, answer = set(), None
    while answer is None:
        try:
            answer = httpx.post(f"{proxy.base}{PATH}", json=LONG, headers=headers, timeout=300, trust_env=False)
        except httpx.RemoteProtocolError:
            ids.add(len(ids))
    assert proxy.stop() == len(ids) >= 1
    assert answer.status_code == 200
    assert opened(server, answer.json()["data"][0]["url"]).size == (256, 256)
    assert charges(server) == before + 1


def test_whitespace_keeps_the_connection_of_who_asks_for_it(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    client = sdk(server, proxy, max_retries=0)
    answer = client.images.with_raw_response.generate(
        **BODY, extra_body={"steps": STEPS}, extra_headers={"X-Keepalive": "1"}
    )
    assert proxy.stop() == 0
    assert answer.text.startswith("  ")
    assert answer.headers["x-darkroom-job"].startswith("img_")
    parsed = answer.parse()
    assert parsed.data
    assert parsed.data[0].url
    assert opened(server, parsed.data[0].url).size == (256, 256)
    assert charges(server) == before + 1


def test_a_key_can_be_set_to_be_kept_alive(server: Server) -> None:
    made = server.darkroom("keys", "create", "behind a proxy")
    key_id, secret = made.stderr.split()[0], made.stdout.strip()
    assert "keepalive on" in server.darkroom("keys", "set", key_id, "--keepalive").stdout
    with server.http(secret) as client:
        kept = client.post(PATH, json=LONG)
        plain = client.post(PATH, json=LONG, headers={"X-Keepalive": "0"})
        refused = client.post(PATH, json={**BODY, "size": "huge"})
    assert kept.text.startswith("  ")
    assert kept.json()["data"]
    assert plain.text.startswith("{")
    assert refused.status_code == 400  # nothing is sent before the call is admitted


def test_comments_keep_a_stream_alive(server: Server, proxy: Proxy) -> None:
    before = charges(server)
    client = sdk(server, proxy, max_retries=0)
    *_, last = client.images.generate(**BODY, stream=True, extra_body={"steps": STEPS})
    assert proxy.stop() == 0
    assert last.type == "image_generation.completed"
    assert Image.open(io.BytesIO(base64.b64decode(last.b64_json))).size == (256, 256)
    assert charges(server) == before + 1


def test_a_failure_after_whitespace_breaks_off_and_the_retry_is_told_of_it(server: Server) -> None:
    before = charges(server)
    keepalive = {"X-Keepalive": "1"}

    def draw(retries: int) -> Any:
        client = server.openai(max_retries=retries)
        return client.images.generate(**BODY, extra_body={"steps": STEPS, "seed": 8}, extra_headers=keepalive)

    for retries, error in ((1, openai.InternalServerError), (0, openai.APIConnectionError)):
        until(lambda: server.readiness()["status"] == "ready", limit_s=300)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            call = pool.submit(draw, retries)
            until(lambda: server.readiness()["jobs"] == 1)
            os.kill(server.readiness()["worker_pid"], signal.SIGKILL)
            raised = call.exception()
        assert type(raised) is error
        if isinstance(raised, openai.InternalServerError):
            assert raised.code == "worker_died"
    assert charges(server) == before


PARTIALS = [(route, partials) for route in ("generate", "edit") for partials in range(4)]


@pytest.mark.parametrize(("route", "partials"), PARTIALS)
def test_the_sdk_iterates_previews_and_then_the_picture(server: Server, route: str, partials: int) -> None:
    until(lambda: server.readiness()["status"] == "ready", limit_s=300)
    client = server.openai()
    given = {"image": picture(256, 256), "extra_body": {"steps": 16}} if route == "edit" else {}
    stream = getattr(client.images, route)(
        **BODY, stream=True, partial_images=partials, **{"extra_body": {"steps": 8}, **given}
    )
    *previews, last = list(stream)
    kind = "image_edit" if route == "edit" else "image_generation"
    assert [event.type for event in previews] == [f"{kind}.partial_image"] * partials
    assert [event.partial_image_index for event in previews] == list(range(partials))
    for event in previews:
        shown = Image.open(io.BytesIO(base64.b64decode(event.b64_json)))
        assert shown.width == shown.height <= 256
        assert (event.size, event.background, event.output_format) == ("256x256", "opaque", "png")
    assert last.type == f"{kind}.completed"
    assert Image.open(io.BytesIO(base64.b64decode(last.b64_json))).size == (256, 256)


def test_the_books_are_clean_after_all_that(server: Server) -> None:
    assert_clean(server)
