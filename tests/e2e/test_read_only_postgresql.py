"""PostgreSQL takes no writes for a while, as around a failover: calls are refused for now, and nothing is lost."""

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.harness import MakeServer, Server, assert_clean, suspended, until
from tests.support.postgresql import Cluster

pytestmark = pytest.mark.nightly

BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.temporary() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(cluster: Cluster, make_tiny: MakeServer) -> Server:
    return make_tiny(database=cluster.new("template0"), lease_s="3")


def post(server: Server) -> httpx.Response:
    with server.http() as client:
        return client.post("/v1/images/generations", json=BODY)


def status(server: Server) -> tuple[int, str]:
    answer = httpx.get(f"{server.base}/readyz", trust_env=False)
    return answer.status_code, answer.json()["status"]


def count_charges(cluster: Cluster, server: Server) -> int:
    name = server.settings["database"].partition("@/")[2].partition("?")[0]
    with cluster.connect(name) as connection:
        return len(connection.execute("SELECT id FROM entries").fetchall())


def test_calls_are_refused_while_it_is_read_only_and_drawn_images_are_charged_afterwards(
    server: Server, cluster: Cluster
) -> None:
    assert post(server).status_code == 200
    assert status(server) == (200, "ready")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with suspended(server.readiness()["worker_pid"]):
            drawn = pool.submit(post, server)
            until(lambda: server.readiness()["jobs"] == 1)
            cluster.set_read_only("on")
        try:
            until(lambda: server.readiness()["jobs"] == 0)
            refused = post(server)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_busy")
            assert 1 <= int(refused.headers["retry-after"]) <= 120
            until(lambda: status(server) == (503, "read-only"))
            with server.http() as client:
                assert client.get("/v1/models").status_code == 200
            assert not drawn.done()
            assert count_charges(cluster, server) == 1
        finally:
            cluster.set_read_only("off")
        answer = drawn.result()
    assert answer.status_code == 200, answer.text
    assert count_charges(cluster, server) == 2
    until(lambda: status(server) == (200, "ready"))
    assert post(server).status_code == 200
    assert count_charges(cluster, server) == 3
    assert "unhandled error" not in server.log
    assert_clean(server)
