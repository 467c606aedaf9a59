"""What goes wrong in a chat: clients that leave, a worker that dies, a full queue."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.test_faults import until
from tests.support.chat_servers import chat_server
from tests.support.harness import Server

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
        assert next(line for line in answer.iter_lines() if line.startswith("data: {"))
    until(lambda: chat_state(narrow)["jobs"] == 0, limit_s=120)
    assert post(narrow, QUICK).status_code == 200


def counted(server: Server, key_id: str) -> tuple[int, int, int]:
    """Chats, tokens read and tokens written, as the ledger shows them."""
    columns = "sum(chats), sum(prompt_tokens), sum(completion_tokens)"
    with contextlib.closing(sqlite3.connect(f"file:{server.home / 'darkroom.db'}?mode=ro", uri=True)) as database:
        row = database.execute(f"SELECT {columns} FROM chat_usage WHERE key_id = ?", [key_id]).fetchone()
    return row[0] or 0, row[1] or 0, row[2] or 0


def first_tokens(server: Server) -> float:
    """How many answers have begun."""
    shown = httpx.get(f"{server.base}/metrics", trust_env=False).text
    found = re.search(r'(?m)^darkroom_chat_first_token_seconds_count\{model="small"\} (\S+)', shown)
    return float(found[1]) if found else 0.0


def leave_in_the_middle(server: Server, secret: str, body: dict[str, Any]) -> None:
    """Send it, and hang up as soon as the answer has begun, whether or not anything of it was sent."""
    before, content = first_tokens(server), json.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        until(lambda: first_tokens(server) > before, limit_s=120)


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_in_the_middle_has_used_what_was_read_and_written_by_then(narrow: Server, stream: bool) -> None:
    made = narrow.darkroom("keys", "create", "leaver")
    key_id, secret = made.stderr.split()[0], made.stdout.strip()
    with narrow.http(secret) as client:
        whole = client.post("/v1/chat/completions", json={**LONG, "seed": 1}, timeout=600).json()["usage"]
    assert counted(narrow, key_id) == (1, whole["prompt_tokens"], whole["completion_tokens"])
    leave_in_the_middle(narrow, secret, {**LONG, "seed": 1, "stream": stream})
    until(lambda: counted(narrow, key_id)[0] == 2, limit_s=120)
    _, read, written = counted(narrow, key_id)
    assert read == 2 * whole["prompt_tokens"]
    assert 0 < written - whole["completion_tokens"] < whole["completion_tokens"]
    until(lambda: chat_state(narrow)["jobs"] == 0, limit_s=120)


def test_chats_and_responses_count_among_a_keys_calls_at_once(narrow: Server) -> None:
    made = narrow.darkroom("keys", "create", "busy", "--group", "chat", "--group", "alpha-image-per-call")
    key_id, secret = made.stderr.split()[0], made.stdout.strip()
    narrow.darkroom("keys", "set", key_id, "--max-running", "1")
    talk = {"model": "small", "input": "go on"}
    with narrow.http(secret) as client:
        with client.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            for path, body in (
                ("/v1/chat/completions", QUICK),
                ("/v1/responses", talk),
                ("/v1/responses/input_tokens", talk),
                ("/v1/images/generations", {"prompt": "a star"}),
            ):
                refused = client.post(path, json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded"), path
                assert 1 <= int(refused.headers["retry-after"]) <= 120
                assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
            assert post(narrow, QUICK).status_code == 200  # another key's
        until(lambda: chat_state(narrow)["jobs"] == 0, limit_s=120)
        for _ in range(5):  # an answer that is there has left its place
            assert client.post("/v1/chat/completions", json=QUICK).status_code == 200
            assert list(client.post("/v1/chat/completions", json={**QUICK, "stream": True}).iter_lines())
        background = client.post("/v1/responses", json={**talk, "background": True})
        assert background.headers["x-ratelimit-remaining-requests"] == "0"
        assert client.post("/v1/chat/completions", json=QUICK).status_code == 429
        until(lambda: client.get(f"/v1/responses/{background.json()['id']}").json()["status"] != "in_progress", 300)
        assert client.post("/v1/responses", json={**talk, "max_output_tokens": 16}).status_code == 200


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
