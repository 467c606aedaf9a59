"""What happens when a part of a cluster dies in mid-image, mid-stream and mid-chat: what each caller gets, what is
charged, and that it is served again. Two servers, PostgreSQL and an S3 server, killed by SIGKILL.

`pytest -rP` prints how long it took until it was served again. The workers are plain ones, without
torch; WORKERS=real has the server's.
"""

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.gateways import Pair, gateway_settings, two_gateways
from tests.support.harness import PLAIN, Server, suspended, until
from tests.support.object_store import ObjectStore, object_store

pytestmark = pytest.mark.nightly

IMAGES, CHATS = "/v1/images/generations", "/v1/chat/completions"
IMAGE = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}
STREAM = {**IMAGE, "steps": 120, "stream": True, "partial_images": 3}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300, "stream": True}


@dataclass
class Answer:
    """What a caller got. `status` 0: the connection was cut."""

    status: int = 0
    text: str = ""
    retry_after: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and ("completed" in self.text or "[DONE]" in self.text or '"url"' in self.text)


@dataclass
class Caller:
    """A key, and what it asks for. The Idempotency-Keys of its image and its stream are the same at every retry."""

    pair: Pair
    secret: str
    name: str

    def request(self, server: Server, body: dict[str, Any], begun: threading.Event | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {self.secret}"}
        path = CHATS if "messages" in body else IMAGES
        if path == IMAGES:
            headers["Idempotency-Key"] = f"{self.name}-{'stream' in body}"
        answer = Answer()
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.Client(timeout=280, trust_env=False) as client,
            client.stream("POST", server.base + path, json=body, headers=headers) as response,
        ):
            for line in response.iter_lines():
                answer.text += line
                if begun is not None and line.startswith("data: "):
                    begun.set()
            answer.status, answer.retry_after = response.status_code, response.headers.get("retry-after")
        return answer

    @property
    def charges(self) -> int:
        return self.pair.charges(self.secret)

    def holds(self) -> int:
        return len(self.pair.running(self.secret))

    def served_again(self, server: Server, body: dict[str, Any], since: float) -> float:
        """Seconds from `since` until the same request is answered."""
        until(lambda: self.request(server, body).is_whole, interval_s=0.2)
        return time.monotonic() - since


def report(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.1f} s")


@dataclass
class Middle:
    """An image, a stream and a chat that run, and where. They go on after the block that began them."""

    image: "concurrent.futures.Future[Answer]"
    stream: "concurrent.futures.Future[Answer]"
    chat: "concurrent.futures.Future[Answer]"

    def answers(self) -> list[Answer]:
        return [each.result(280) for each in (self.image, self.stream, self.chat)]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store, pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment.items():
            environment.setenv(name, value)
        yield store


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore) -> Iterator[Pair]:
    with two_gateways(tmp_path_factory.mktemp("faults"), PLAIN, storage=store.url) as pair:
        yield pair


@pytest.fixture
def caller(pair: Pair) -> Caller:
    return Caller(pair, pair.key(), uuid.uuid4().hex)


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        yield pool


@contextlib.contextmanager
def in_the_middle(caller: Caller, server: Server, pool: concurrent.futures.ThreadPoolExecutor) -> Iterator[Middle]:
    """All three have begun, and do not get on: the workers are suspended."""
    state = server.readiness()
    with contextlib.ExitStack() as workers:
        begun = []
        for body, pid in ((STREAM, state["worker_pid"]), (CHAT, state["chat"]["worker_pid"])):
            first = threading.Event()
            begun.append(pool.submit(caller.request, server, body, first))
            assert first.wait(240)
            workers.enter_context(suspended(pid))  # it has seconds of work left
        stream, chat = begun
        image = pool.submit(caller.request, server, IMAGE)
        until(lambda: caller.holds() == 2)
        assert not stream.done()
        assert not chat.done()
        yield Middle(image, stream, chat)


def test_workers_die(caller: Caller, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    pair = caller.pair
    sibling = Caller(pair, caller.secret, "sibling")
    with in_the_middle(caller, pair.a, pool) as middle, pair.held_up(pair.b):
        untouched = pool.submit(sibling.request, pair.b, IMAGE)
        until(lambda: caller.holds() == 3)
        state, killed_at = pair.a.readiness(), time.monotonic()
        for pid in (state["worker_pid"], state["chat"]["worker_pid"]):
            os.kill(pid, signal.SIGKILL)
    image, stream, chat = middle.answers()
    assert (image.status, "worker_died" in image.text) == (500, True)
    for cut in (stream, chat):
        assert (cut.status, "worker_died" in cut.text, cut.is_whole) == (200, True, "[DONE]" in cut.text)
    report("a worker dies: an image", caller.served_again(pair.a, IMAGE, killed_at))
    report("a worker dies: a chat", caller.served_again(pair.a, CHAT, killed_at))
    assert untouched.result().is_whole
    assert caller.charges == 2


def test_a_server_dies(caller: Caller, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    pair = caller.pair
    with in_the_middle(caller, pair.a, pool) as middle:
        pair.a.kill()
        killed_at = time.monotonic()
        assert caller.request(pair.b, CHAT).is_whole
        report("a server dies: another call, on the other", time.monotonic() - killed_at)
        waiting = caller.request(pair.b, IMAGE)
        assert (waiting.status, waiting.retry_after is not None) == (503, True)
    assert [answer.is_whole for answer in middle.answers()] == [False] * 3
    for name, body in (("picture", IMAGE), ("stream", STREAM)):
        report(f"a server dies: the same {name}", caller.served_again(pair.b, body, killed_at))
    assert caller.charges == 2
    began = time.monotonic()
    pair.a.start()
    report("a server comes back", time.monotonic() - began)
    assert caller.request(pair.a, IMAGE).is_whole
    assert caller.charges == 2


def test_both_servers_die(caller: Caller, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    pair = caller.pair
    with in_the_middle(caller, pair.a, pool) as middle:
        for server in pair.servers:
            server.kill()
        killed_at = time.monotonic()
    assert [answer.is_whole for answer in middle.answers()] == [False] * 3
    for server in pair.servers:
        server.start(wait=False)
    for server in pair.servers:
        server.wait_ready()
    for name, body in (("picture", IMAGE), ("stream", STREAM), ("chat", CHAT)):
        report(f"both servers die: the same {name}", caller.served_again(pair.b, body, killed_at))
    assert caller.charges == 2


def test_postgresql_dies(caller: Caller, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    pair = caller.pair
    with in_the_middle(caller, pair.a, pool) as middle:
        pair.cluster.kill()
        refused = [caller.request(server, CHAT) for server in pair.servers]
        assert [(answer.status, answer.retry_after is not None) for answer in refused] == [(503, True)] * 2
    until(lambda: pair.a.readiness()["jobs"] == 0)  # both images are drawn, and wait to be recorded
    pair.cluster.start()
    back_at = time.monotonic()
    report("PostgreSQL dies: a chat", caller.served_again(pair.b, CHAT, back_at))
    assert [answer.is_whole for answer in middle.answers()] == [True] * 3
    until(lambda: caller.charges == 2)
    assert caller.request(pair.b, IMAGE).is_whole
    assert caller.charges == 2


def test_the_store_dies(caller: Caller, store: ObjectStore, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    pair = caller.pair
    with in_the_middle(caller, pair.a, pool) as middle:
        store.stop()
    image, stream, chat = middle.answers()
    assert (image.status, "storage_failed" in image.text) == (503, True)
    assert (stream.status, "storage_failed" in stream.text) == (200, True)
    assert chat.is_whole
    until(lambda: caller.holds() == 0)
    assert caller.charges == 0
    store.start()
    back_at = time.monotonic()
    for name, body in (("picture", IMAGE), ("stream", STREAM)):
        report(f"the store dies: the same {name}", caller.served_again(pair.a, body, back_at))
    assert caller.charges == 2


def test_a_server_is_added_and_drained(caller: Caller, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    pair = caller.pair
    settings = {**gateway_settings(pair.url, pair.a.home), "storage": pair.a.settings["storage"]}
    third = Server(pair.a.home.parent / "c", pair.a.weights, pair.a.configs, settings, program=PLAIN)
    try:
        began = time.monotonic()
        third.start()
        report("a server is added", time.monotonic() - began)
        with in_the_middle(caller, third, pool) as middle:
            forwarded = pair.b.log.count("forwarded")
            joined = pool.submit(caller.request, pair.b, IMAGE)
            until(lambda: pair.b.log.count("forwarded") > forwarded)
            assert third.process is not None
            third.process.send_signal(signal.SIGTERM)
            until(lambda: third.readiness()["status"] == "draining")
            refused = caller.request(third, CHAT)
            assert (refused.status, refused.retry_after is not None) == (503, True)
        assert [answer.is_whole for answer in [*middle.answers(), joined.result()]] == [True] * 4
        assert third.wait_dead() == 0
    finally:
        third.kill()
    assert caller.charges == 2
    assert caller.request(pair.a, IMAGE).is_whole


def test_the_books_agree_after_all_that(pair: Pair) -> None:
    """The store has lost the images of before its death, so `darkroom ledger --check` would name them."""
    until(lambda: pair.rows("SELECT count(*) FROM holds WHERE state = 'held'") == [(0,)])
