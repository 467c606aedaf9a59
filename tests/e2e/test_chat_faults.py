"""Faults in chats: clients that disconnect, a worker that dies, a full queue."""

import concurrent.futures
import contextlib
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.chat_servers import ENDLESS, chat_server
from tests.support.harness import Server, count_rows, locked_database, suspended, until
from tests.support.tiny_chat_checkpoints import ENDLESS_CONTEXT

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "go on"}]
LONG: dict[str, Any] = {"model": "endless", "messages": HELLO, "n": 8, "seed": 1, **ENDLESS}
QUICK: dict[str, Any] = {"model": "small", "messages": HELLO, "max_tokens": 2}


@pytest.fixture(scope="module")
def small_queue(tmp_path_factory: pytest.TempPathFactory, chat_weights: Path) -> Iterator[Server]:
    """A server whose queue has room for two chats."""
    home = tmp_path_factory.mktemp("small-queue")
    server = chat_server(home, chat_weights, chat_max_queue="2", keepalive_s="0.2").start()
    yield server
    server.kill()


def chat_state(server: Server) -> dict[str, Any]:
    state: dict[str, Any] = server.readiness()["chat"]
    return state


def post(server: Server, body: dict[str, Any]) -> httpx.Response:
    with server.http() as client:
        return client.post(PATH, json=body)


def idle(server: Server) -> bool:
    return bool(chat_state(server)["jobs"] == 0)


def chat_worker_suspended(server: Server) -> contextlib.AbstractContextManager[None]:
    return suspended(chat_state(server)["worker_pid"])


def test_a_client_that_disconnects_frees_its_place_in_the_queue(small_queue: Server) -> None:
    assert post(small_queue, QUICK).status_code == 200
    for stream in (True, False):
        with chat_worker_suspended(small_queue), small_queue.unread_call(PATH, {**LONG, "stream": stream}):
            until(lambda: chat_state(small_queue)["jobs"] == 1)
        until(lambda: idle(small_queue))
    with (
        small_queue.http() as client,
        client.stream("POST", PATH, json={**LONG, "stream": True}) as answer,
    ):
        assert next(line for line in answer.iter_lines() if line.startswith("data: {"))
    until(lambda: idle(small_queue))
    assert post(small_queue, QUICK).status_code == 200


def counted(server: Server, key_id: str) -> tuple[int, int, int]:
    """Chats, prompt tokens and completion tokens of a key in the database."""
    columns = "sum(chats), sum(prompt_tokens), sum(completion_tokens)"
    with contextlib.closing(sqlite3.connect(f"file:{server.home / 'darkroom.db'}?mode=ro", uri=True)) as database:
        row = database.execute(f"SELECT {columns} FROM chat_usage WHERE key_id = ?", [key_id]).fetchone()
    return row[0] or 0, row[1] or 0, row[2] or 0


def first_tokens(server: Server) -> float:
    """How many answers have begun."""
    metrics = httpx.get(f"{server.base}/metrics", timeout=60, trust_env=False).text
    count = re.search(r'(?m)^darkroom_chat_first_token_seconds_count\{model="endless"\} (\S+)', metrics)
    return float(count[1]) if count else 0.0


@pytest.mark.parametrize("stream", [True, False])
def test_the_tokens_of_a_cancelled_chat_are_counted(small_queue: Server, stream: bool) -> None:
    made = small_queue.darkroom("keys", "create", "leaver")
    key_id, secret = made.stderr.split()[1], made.stdout.strip()
    with small_queue.http(secret) as client:
        short = client.post(PATH, json={**LONG, "max_tokens": 2}).json()["usage"]
    until(lambda: counted(small_queue, key_id) == (1, short["prompt_tokens"], short["completion_tokens"]))
    before = first_tokens(small_queue)
    with small_queue.unread_call(PATH, {**LONG, "stream": stream}, secret):
        until(lambda: first_tokens(small_queue) > before, interval_s=0.005)
    until(lambda: counted(small_queue, key_id)[0] == 2)
    _, prompt_tokens, completion_tokens = counted(small_queue, key_id)
    assert prompt_tokens == 2 * short["prompt_tokens"]
    assert 0 < completion_tokens - short["completion_tokens"] < 8 * ENDLESS_CONTEXT // 2
    until(lambda: idle(small_queue))


@pytest.mark.nightly
def test_chats_and_responses_count_among_a_keys_calls_at_once(small_queue: Server) -> None:
    secret = small_queue.new_key("busy", groups=["chat", "alpha-image-per-call"], max_running=1)
    respond = {"model": "small", "input": "go on", "max_output_tokens": 16}
    with small_queue.http(secret) as client, concurrent.futures.ThreadPoolExecutor() as pool:
        with (
            client.stream("POST", PATH, json={**LONG, "stream": True}) as answer,
            chat_worker_suspended(small_queue),
        ):
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            for path, body in (
                (PATH, QUICK),
                ("/v1/responses", respond),
                ("/v1/responses/input_tokens", respond),
                ("/v1/images/generations", {"prompt": "a star"}),
            ):
                refused = client.post(path, json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded"), path
                assert 1 <= int(refused.headers["retry-after"]) <= 120
                assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
            other = pool.submit(post, small_queue, QUICK)  # of another key
            until(lambda: chat_state(small_queue)["jobs"] == 2)
        assert other.result().status_code == 200
        until(lambda: idle(small_queue))
        for _ in range(5):  # an answered call no longer counts
            assert client.post(PATH, json=QUICK).status_code == 200
            assert list(client.post(PATH, json={**QUICK, "stream": True}).iter_lines())
        with chat_worker_suspended(small_queue):
            background = client.post("/v1/responses", json={**respond, "background": True})
            assert background.headers["x-ratelimit-remaining-requests"] == "0"
            assert client.post(PATH, json=QUICK).status_code == 429
        status_url = f"/v1/responses/{background.json()['id']}"
        until(lambda: client.get(status_url).json()["status"] not in {"queued", "in_progress"})
        assert client.post("/v1/responses", json=respond).status_code == 200


def test_a_json_answer_can_be_kept_alive(small_queue: Server) -> None:
    with small_queue.http() as client:
        answer = client.post(PATH, json={**LONG, "max_tokens": 500}, headers={"X-Keepalive": "1"})
    assert answer.content.startswith(b" ")
    assert len(answer.json()["choices"]) == 8


def test_a_full_queue_is_503_with_retry_after(small_queue: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with chat_worker_suspended(small_queue):
            calls = [pool.submit(post, small_queue, QUICK) for _ in range(2)]
            until(lambda: chat_state(small_queue)["jobs"] == 2)
            refused = post(small_queue, QUICK)
        assert [call.result().status_code for call in calls] == [200, 200]
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert post(small_queue, QUICK).status_code == 200


def test_a_dead_worker_fails_its_chats_and_nothing_else(small_queue: Server) -> None:
    pids = (small_queue.readiness()["worker_pid"], chat_state(small_queue)["worker_pid"])
    stream = small_queue.openai().chat.completions.create(**{**LONG, "stream": True})
    first = next(iter(stream))
    assert first.choices[0].delta.role == "assistant"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with chat_worker_suspended(small_queue):
            pending = pool.submit(post, small_queue, QUICK)
            until(lambda: chat_state(small_queue)["jobs"] == 2)
            os.kill(pids[1], signal.SIGKILL)
        answer = pending.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_died")
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["code"] == "worker_died"
    until(lambda: chat_state(small_queue)["worker_pid"] not in {None, pids[1]})
    assert post(small_queue, QUICK).status_code == 200
    assert small_queue.readiness()["worker_pid"] == pids[0]  # the image worker is untouched


def test_chats_are_answered_while_the_database_is_locked_and_their_tokens_counted_later(small_queue: Server) -> None:
    secret = small_queue.new_key("counted")
    mine = "key_id = (SELECT id FROM keys WHERE name = 'counted')"
    with locked_database(small_queue), small_queue.http(secret) as client:
        answer = client.post(PATH, json=QUICK)
        assert count_rows(small_queue, "chat_usage", mine) == 0
    assert answer.status_code == 200
    tokens = answer.json()["usage"]["completion_tokens"]
    until(lambda: count_rows(small_queue, "chat_usage", f"{mine} AND chats = 1 AND completion_tokens = {tokens}") == 1)
