"""What goes wrong in a chat: clients that leave, a worker that dies, a full queue."""

import concurrent.futures
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.chat_servers import chat_server
from tests.e2e.test_faults import until
from tests.harness import Server

LONG: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "go on"}], "n": 8, "logit_bias": {}}
QUICK: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, chat_weights: Path) -> Iterator[Server]:
    """A server with room for two chats."""
    server = chat_server(tmp_path_factory.mktemp("narrow"), chat_weights, chat_max_queue="2", keepalive_s="0.2").start()
    yield server
    server.kill()


def chat_state(server: Server) -> dict[str, Any]:
    state: dict[str, Any] = server.readiness()["chat"]
    return state


def post(server: Server, body: dict[str, Any]) -> httpx.Response:
    with server.http() as client:
        return client.post("/v1/chat/completions", json=body)


def suspended(server: Server) -> "Suspension":
    return Suspension(chat_state(server)["worker_pid"])


class Suspension:
    """A worker that does not go on: what it has stays in it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> "Suspension":
        os.kill(self.pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def test_whoever_leaves_frees_the_slot(narrow: Server) -> None:
    assert post(narrow, QUICK).status_code == 200
    for stream in (True, False):
        with (
            suspended(narrow),
            narrow.http() as client,
            pytest.raises(httpx.ReadTimeout),
        ):
            client.post("/v1/chat/completions", json={**LONG, "stream": stream}, timeout=2)
        until(lambda: chat_state(narrow)["jobs"] == 0, limit_s=120)
    with (
        narrow.http() as client,
        client.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer,
    ):
        assert next(answer.iter_lines()).startswith("data: {")
    until(lambda: chat_state(narrow)["jobs"] == 0, limit_s=120)
    assert post(narrow, QUICK).status_code == 200


def test_a_json_answer_can_be_kept_alive(narrow: Server) -> None:
    with narrow.http() as client:
        answer = client.post(
            "/v1/chat/completions", json={**LONG, "seed": 1}, headers={"X-Keepalive": "1"}, timeout=600
        )
    assert answer.content.startswith(b" ")
    assert len(answer.json()["choices"]) == 8


def test_a_full_queue_is_503_with_retry_after(narrow: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with suspended(narrow):
            calls = [pool.submit(post, narrow, QUICK) for _ in range(2)]
            until(lambda: chat_state(narrow)["jobs"] == 2)
            refused = post(narrow, {**QUICK, "stream": True})
        assert [call.result().status_code for call in calls] == [200, 200]
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert post(narrow, QUICK).status_code == 200


def test_a_dead_worker_fails_its_chats_and_nothing_else(narrow: Server) -> None:
    pids = (narrow.readiness()["worker_pid"], chat_state(narrow)["worker_pid"])
    stream = narrow.openai().chat.completions.create(**{**LONG, "stream": True})
    first = next(iter(stream))
    assert first.choices[0].delta.role == "assistant"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with suspended(narrow):
            whole = pool.submit(post, narrow, QUICK)
            until(lambda: chat_state(narrow)["jobs"] == 2)
            os.kill(pids[1], signal.SIGKILL)
        answer = whole.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_died")
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["code"] == "worker_died"
    until(lambda: chat_state(narrow)["worker_pid"] not in {None, pids[1]}, limit_s=120)
    assert post(narrow, QUICK).status_code == 200
    assert narrow.readiness()["worker_pid"] == pids[0]  # the image worker did not notice
