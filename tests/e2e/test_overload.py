"""Limits on concurrent calls, workers that hang, and SIGTERM."""

import concurrent.futures
import os
import signal
from typing import Any

import httpx
import pytest

from tests.support.harness import PLAIN, MakeServer, Server, assert_clean, charges, suspended, until

PATH = "/v1/images/generations"
QUICK: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
LONG = {**QUICK, "size": "1024x1024", "steps": 200}


@pytest.fixture(scope="module")
def limited(make_tiny: MakeServer) -> Server:
    """One running call for each key, and a queue with room for one job."""
    return make_tiny(PLAIN, max_running_per_key="1", max_queue_s="0.001", drain_s="250")


@pytest.fixture
def server(limited: Server) -> Server:
    """It runs, also if the test before has ended it."""
    if limited.process is None or limited.process.poll() is not None:
        limited.start()
    return limited


@pytest.fixture
def pool() -> Any:
    with concurrent.futures.ThreadPoolExecutor() as threads:
        yield threads


def send(server: Server, body: dict[str, Any], key: str | None = None, **headers: str) -> httpx.Response:
    with server.http(key) as client:
        client.timeout = httpx.Timeout(280)
        return client.post(PATH, json=body, headers=headers)


def start_call(server: Server, pool: concurrent.futures.ThreadPoolExecutor, body: dict[str, Any]) -> Any:
    """A call that is queued or runs. Its answer is a future."""
    call = pool.submit(send, server, body)
    until(lambda: server.readiness()["jobs"] == 1)
    return call


def health(server: Server, path: str) -> httpx.Response:
    return httpx.get(f"{server.base}{path}", timeout=60, trust_env=False)


def test_neither_one_key_nor_all_keys_together_can_fill_the_queue(
    server: Server, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    stranger, before = server.new_key("stranger"), charges(server)
    with suspended(server.readiness()["worker_pid"]):
        first = start_call(server, pool, QUICK)
        mine, retried = send(server, QUICK), send(server, QUICK, **{"x-stainless-retry-count": "1"})
        theirs = send(server, QUICK, stranger)
    for refused in (mine, retried):  # the retry is of the refused call, not of the one that runs
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.json()["error"]["type"] == "requests"
        assert refused.headers["x-ratelimit-limit-requests"] == "1"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert theirs.status_code == 503
    assert theirs.json()["error"]["code"] == "server_overloaded"
    assert 1 <= int(theirs.headers["retry-after"]) <= 120
    answer = first.result()
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    second = send(server, QUICK, **{"x-stainless-retry-count": "1"})
    assert second.status_code == 200
    assert "idempotency-replayed" not in second.headers
    assert second.json()["data"] != answer.json()["data"]
    assert charges(server) == before + 2


def test_a_key_can_have_its_own_limit_of_running_calls(server: Server) -> None:
    secret = server.new_key("busy", max_running=7)
    assert send(server, QUICK, secret).headers["x-ratelimit-limit-requests"] == "7"


def test_a_key_can_have_a_limit_of_calls_a_minute(server: Server) -> None:
    made = server.darkroom("keys", "create", "hasty")
    key_id, secret = made.stderr.split()[1], made.stdout.strip()
    assert "1 calls a minute" in server.darkroom("keys", "set", key_id, "--per-minute", "1").stdout
    first, refused = send(server, QUICK, secret), send(server, {**QUICK, "n": 2}, secret)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "a minute" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    again = send(server, QUICK, secret, **{"x-stainless-retry-count": "1"})
    assert again.status_code == 200  # the first call's answer, which costs nothing
    assert server.darkroom("keys", "set", key_id, "--per-minute", "0", "--budget", "0.15").returncode == 0
    assert send(server, {**QUICK, "n": 2}, secret).json()["error"]["code"] == "insufficient_quota"
    assert "0.10 CNY already" in server.darkroom("keys", "set", key_id, "--budget", "0.05").stderr


@pytest.mark.nightly
def test_a_worker_that_hangs_is_replaced_and_its_calls_fail_uncharged(make_tiny: MakeServer) -> None:
    server = make_tiny(worker_silence_s="10")
    stuck = server.readiness()["worker_pid"]
    os.kill(stuck, signal.SIGSTOP)
    answer = send(server, QUICK)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "worker_died"
    until(lambda: server.readiness()["status"] == "ready")
    assert server.readiness()["worker_pid"] != stuck
    assert "killing a worker" in server.log
    assert send(server, QUICK).status_code == 200
    assert charges(server) == 1
    assert_clean(server)
    server.stop()


def test_sigterm_lets_running_calls_finish(server: Server, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    before, worker_pid = charges(server), server.readiness()["worker_pid"]
    with suspended(worker_pid):
        call = start_call(server, pool, QUICK)
        send_sigterm(server)
        os.kill(worker_pid, signal.SIGTERM)  # as service managers do, which signal the whole process group
        until(lambda: health(server, "/readyz").status_code == 503)
        assert health(server, "/readyz").json()["status"] == "draining"
        assert health(server, "/healthz").status_code == 200
        refused = send(server, QUICK)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert call.result().status_code == 200
    assert server.wait_dead() == 0
    assert charges(server) == before + 1
    assert_clean(server)


@pytest.mark.nightly
def test_a_call_that_outlasts_the_drain_is_stopped_uncharged(
    make_tiny: MakeServer, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    server = make_tiny(drain_s="0.5")
    call = start_call(server, pool, LONG)
    send_sigterm(server)
    answer = call.result()
    assert answer.status_code == 503
    assert "nothing was charged" in answer.json()["error"]["message"]
    assert server.wait_dead() == 0
    assert charges(server) == 0
    assert_clean(server)


@pytest.mark.nightly
def test_the_second_signal_ends_the_server_at_once(
    make_tiny: MakeServer, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    server = make_tiny(drain_s="600")
    call = start_call(server, pool, LONG)
    send_sigterm(server)
    until(lambda: health(server, "/readyz").status_code == 503)
    send_sigterm(server)
    assert call.result().status_code == 503
    assert server.wait_dead() == 0
    assert charges(server) == 0
    assert_clean(server)


def send_sigterm(server: Server) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
