"""Two nodes of PostgreSQL change their places under load, there and back: calls are refused for some seconds, and come
through when they are sent again; nothing is charged twice, and no image that was drawn is lost."""

import concurrent.futures
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recount import from_folder, read_books, recount, unsettled
from server.accounts.db import PATIENT_LIMIT_S
from tests.support.harness import Server, assert_clean, until
from tests.support.postgresql import Nodes
from tests.support.tiny_server import tiny_server

pytestmark = pytest.mark.nightly

CALLS, THREADS = 200, 8
BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 2, "model": "alpha-image-2-count"}


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes.temporary() as nodes:
        yield nodes


@pytest.fixture
def server(nodes: Nodes, tmp_path: Path) -> Iterator[Server]:
    """It deletes no file of an image that was not charged, so that those that were drawn can be counted."""
    settings = {"database": nodes.new("template0"), "result_grace_s": "3600", "preload": "false"}
    server = tiny_server(tmp_path, "benchmarks.plain_server", max_running_per_key="64", **settings).start()
    yield server
    server.kill()


class Load:
    """Calls, each of which is sent again with its Idempotency-Key while the database refuses it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.delivered: set[str] = set()
        self.refused_at: list[float] = []
        self._lock = threading.Lock()

    def call(self, _: int) -> None:
        name = uuid.uuid4().hex
        with self.server.http() as client:
            while True:
                answer = client.post("/v1/images/generations", json=BODY, headers={"Idempotency-Key": name})
                if answer.status_code == 200:
                    break
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_busy"), answer.text
                assert int(answer.headers["retry-after"]) >= 1
                with self._lock:
                    self.refused_at.append(time.monotonic())
                time.sleep(0.2)
        with self._lock:
            self.delivered.add(name)


def test_200_calls_and_a_switch_there_and_back(server: Server, nodes: Nodes) -> None:
    load = Load(server)
    refused_s = []
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        calls = [pool.submit(load.call, number) for number in range(CALLS - 2)]
        for share in (CALLS // 4, CALLS // 2):
            until(lambda share=share: len(load.delivered) >= share)  # type: ignore[misc]
            load.refused_at.clear()
            begun = time.monotonic()
            nodes.demote()
            with concurrent.futures.ThreadPoolExecutor(1) as other:  # the callers may all wait for drawn images
                refused = other.submit(load.call, share)
                until(lambda: bool(load.refused_at))  # no node takes writes, and clients are told so
                until(lambda: server.readiness()["status"] == "read-only")
                nodes.promote()
                refused.result()
            refused_s.append(time.monotonic() - begun)
        for call in calls:
            call.result()
    print(f"calls were refused for {' and '.join(f'{seconds:.1f}' for seconds in refused_s)} s")
    assert max(refused_s) < PATIENT_LIMIT_S
    until(lambda: server.readiness()["status"] == "ready")
    books = read_books(server.settings["database"])
    assert recount(books, from_folder(server.home / "results"), load.delivered, ()) == []
    assert (len(books.charges), len(load.delivered), unsettled(books)) == (CALLS, CALLS, [])
    drawn = list((server.home / "results").rglob("*.png"))
    assert len(drawn) == CALLS, "an image was drawn, and not charged"
    assert "unhandled error" not in server.log
    assert_clean(server)
