"""Short runs of `make fuzz`, `make load` and `make chaos`, on one server and on two."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos import CLUSTER_TARGETS, SETTINGS, Chaos, two_servers
from benchmarks.fuzz import Fuzz
from benchmarks.load import Load
from benchmarks.ray_chaos import TARGETS, ray_chaos
from tests.support.harness import Server, assert_clean
from tests.support.tiny_server import tiny_server

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = tiny_server(tmp_path_factory.mktemp("tiny"), **SETTINGS).start()
    yield running
    running.kill()


def test_mutated_requests_break_nothing(server: Server) -> None:
    fuzz = Fuzz(server)
    fuzz.run(100)
    assert fuzz.problems == []
    assert sum(fuzz.statuses.values()) == 100
    assert {200, 400, 404} <= fuzz.statuses.keys()
    assert_clean(server)


def test_many_calls_at_once_are_all_answered(server: Server) -> None:
    load = Load(server)
    load.run(chats=16, images=4, keys=2)
    assert load.statuses == {"chat 200": 16, "image 200": 4}
    assert all(load.checks_s[path] for path in ("/healthz", "/v1/models"))


def test_kills_leave_no_wrong_charge(server: Server) -> None:
    chaos = Chaos([server])
    chaos.run(kills=2)
    assert chaos.problems == []
    assert chaos.recounts > 0
    assert chaos.delivered


def test_kills_of_everything_that_two_servers_need_leave_no_wrong_charge(tmp_path: Path) -> None:
    with two_servers(tmp_path, "benchmarks.plain_server") as chaos:
        chaos.run(kills=len(CLUSTER_TARGETS))
    assert chaos.problems == []
    assert chaos.kills.keys() == CLUSTER_TARGETS.keys()
    assert chaos.delivered


@pytest.mark.nightly
def test_kills_of_everything_in_a_ray_cluster_leave_no_wrong_charge(tmp_path: Path) -> None:
    with ray_chaos(tmp_path) as chaos:
        chaos.run(kills=len(TARGETS))
    assert chaos.problems == []
    assert chaos.kills.keys() == TARGETS.keys()
    assert chaos.delivered
