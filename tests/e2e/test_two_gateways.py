"""Two servers on one PostgreSQL: what runs on one is found, joined, watched and cancelled through the other, a key's
limits hold for both together, and one that dies costs its own calls only.

Workers are suspended while a test looks at what runs, so that nothing depends on how long an image takes.
"""

import concurrent.futures
import contextlib
import json
import queue
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.support.gateways import Pair, two_gateways
from tests.support.harness import CALL_LIMIT_S, PLAIN, Server, suspended, until

PATH = "/v1/images/generations"
BODY = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}
FIRST = {"x-stainless-retry-count": "0"}
RETRY = {"x-stainless-retry-count": "1"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_gateways(tmp_path_factory.mktemp("pair"), PLAIN, webhooks="any") as pair:
        yield pair


@contextlib.contextmanager
def in_background() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        yield pool


def post(server: Server, secret: str, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
    with server.http(secret) as client:
        return client.post(PATH, json=BODY | changes, headers=headers)


def forwarded(server: Server) -> int:
    """How many requests it has sent on to the other one."""
    return server.log.count("forwarded")


def test_a_cut_call_that_is_retried_elsewhere_is_drawn_and_charged_once(pair: Pair) -> None:
    key, before = pair.key(), forwarded(pair.b)
    with in_background() as pool:
        with pair.held_up(pair.a):
            with pair.a.unread_call(PATH, BODY, key, **FIRST):
                until(lambda: len(pair.running(key)) == 1)
            retry = pool.submit(post, pair.b, key, RETRY)
            until(lambda: forwarded(pair.b) > before)
        answer = retry.result()
    assert answer.status_code == 200
    assert pair.charges(key) == 1


def test_a_loop_around_an_sdk_finds_its_call_on_the_other_server(pair: Pair) -> None:
    """Its count begins at 0 again. A call whose client is still there stays another one."""
    key, before = pair.key(), forwarded(pair.b)
    with in_background() as pool:
        with pair.held_up(pair.a), pair.held_up(pair.b):
            with pair.a.unread_call(PATH, BODY, key, **FIRST):
                until(lambda: len(pair.running(key)) == 1)
                second = pool.submit(post, pair.b, key, FIRST)
                until(lambda: len(pair.running(key)) == 2)
            until(lambda: pair.rows("SELECT count(*) FROM claims WHERE client_left") == [(1,)])
            again = pool.submit(post, pair.b, key, FIRST)
            until(lambda: forwarded(pair.b) > before)
        answers = [call.result() for call in (second, again)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["data"] != answers[1].json()["data"]
    assert pair.charges(key) == 2


def test_a_lost_answer_is_delivered_by_the_other_server(pair: Pair) -> None:
    key = pair.key()
    with pair.a.unread_call(PATH, BODY, key):
        until(lambda: pair.charges(key) == 1)
    until(lambda: pair.rows("SELECT heard FROM calls WHERE key_id = %s", pair.key_id(key)) == [(False,)])
    pair.a.readiness()  # by then it knows that its client has left
    assert post(pair.b, key).headers["idempotency-replayed"] == "true"
    assert post(pair.b, key).status_code == 200
    assert pair.charges(key) == 2


def test_equal_calls_with_one_idempotency_key_on_both_share_one_image(pair: Pair) -> None:
    key = pair.key()
    with in_background() as pool:
        with pair.held_up(pair.a), pair.held_up(pair.b):
            calls = [
                pool.submit(post, server, key, {"Idempotency-Key": "one"})
                for server in (pair.a, pair.b)
                for _ in "1234"
            ]
            until(lambda: len(pair.running(key)) == 1)
        answers = [call.result() for call in calls]
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len({answer.json()["data"][0]["url"].rpartition("/")[2] for answer in answers}) == 1
    assert pair.charges(key) == 1
    assert post(pair.b, key, {"Idempotency-Key": "one"}, prompt="another").status_code == 422


def test_an_image_of_one_is_served_read_and_replayed_by_the_other(pair: Pair) -> None:
    key = pair.key()
    drawn = post(pair.a, key, {"Idempotency-Key": "three"}, response_format="b64_json").json()["data"][0]["b64_json"]
    named = post(pair.a, key).json()["data"][0]["url"]
    again = post(pair.b, key, {"Idempotency-Key": "three"}, response_format="b64_json")
    assert (again.headers["Idempotency-Replayed"], again.json()["data"][0]["b64_json"]) == ("true", drawn)
    with pair.b.http(key) as other:
        assert other.get(f"/cdn/{named.rpartition('/')[2]}").status_code == 200
    assert post(pair.b, key, image=[named]).status_code == 200
    assert pair.charges(key) == 3


def test_a_call_is_shown_and_cancelled_through_the_other_server(pair: Pair) -> None:
    key = pair.key()
    with in_background() as pool, pair.b.http(key) as other:
        with pair.held_up(pair.a):
            call = pool.submit(post, pair.a, key)
            until(lambda: len(pair.running(key)) == 1)
            (job,) = pair.running(key)
            headers = {"X-Title": "Café".encode("latin-1")}
            shown = other.get(f"/v1/images/jobs/{job}", headers=headers)
            assert shown.json()["state"] in {"queued", "running"}
            assert other.post(f"/v1/images/jobs/{job}/cancel").json()["state"] == "cancelled"
        answer = call.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")
    assert pair.charges(key) == 0


def test_a_response_is_watched_and_cancelled_through_the_other_server(pair: Pair) -> None:
    key = pair.key()
    body = {"model": "starter-chat", "input": "Tell me more.", "background": True, "max_output_tokens": 16}
    chat_pid = pair.a.readiness()["chat"]["worker_pid"]
    with pair.a.http(key) as here, pair.b.http(key) as there, in_background() as pool:
        with suspended(chat_pid):
            watched = here.post("/v1/responses", json=body).json()["id"]
            cancelled = here.post("/v1/responses", json=body).json()["id"]
            assert there.post(f"/v1/responses/{cancelled}/cancel").json()["status"] == "cancelled"
            assert there.get(f"/v1/responses/{watched}").json()["status"] in {"queued", "in_progress"}
            stream = pool.submit(there.get, f"/v1/responses/{watched}?stream=true")
            until(lambda: f"/v1/responses/{watched}" in pair.b.log)
        seen = _events(stream.result())
        assert seen == _events(here.get(f"/v1/responses/{watched}?stream=true"))
        assert seen[-1]["type"] in {"response.completed", "response.incomplete"}
        assert here.get(f"/v1/responses/{cancelled}").json()["status"] == "cancelled"


def _events(stream: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_key_has_its_limits_on_both_together(pair: Pair) -> None:
    slow, quick = pair.key(max_running=1), pair.key(per_minute=2)
    with in_background() as pool:
        with pair.held_up(pair.a):
            first = pool.submit(post, pair.a, slow)
            until(lambda: len(pair.running(slow)) == 1)
            refused = post(pair.b, slow)
        assert (refused.status_code, first.result().status_code) == (429, 200)
    one_by_one = [post(server, slow, seed=seed) for seed in range(8) for server in (pair.b, pair.a)]
    assert {answer.status_code for answer in one_by_one} == {200}  # a call has ended before its client knows it
    answers = [post(server, quick, seed=seed) for seed, server in enumerate((pair.a, pair.b, pair.a, pair.b))]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.nightly
def test_a_call_refused_by_one_is_drawn_and_charged_once_by_the_other(pair: Pair) -> None:
    """A 429, and a 503 of a server that is about to stop: clients and balancers send both again with their key."""
    key, headers = pair.key(max_running=1), {"Idempotency-Key": "refused"}
    with in_background() as pool:
        with pair.held_up(pair.a):
            first = pool.submit(post, pair.a, key)
            until(lambda: len(pair.running(key)) == 1)
            assert [post(server, key, headers).status_code for server in pair.servers] == [429, 429]
        assert first.result().status_code == 200
    drawn = post(pair.b, key, headers)
    assert (drawn.status_code, "idempotency-replayed" in drawn.headers) == (200, False)
    assert post(pair.a, key, headers).headers["idempotency-replayed"] == "true"
    assert pair.charges(key) == 2

    key = pair.key()
    with in_background() as pool:
        with pair.held_up(pair.a):
            first = pool.submit(post, pair.a, key)
            until(lambda: len(pair.running(key)) == 1)
            assert pair.a.process is not None
            pair.a.process.send_signal(signal.SIGTERM)
            until(lambda: pair.a.readiness()["status"] == "draining")
            assert post(pair.a, key, headers).status_code == 503
            drawn = post(pair.b, key, headers)
        assert (first.result().status_code, drawn.status_code) == (200, 200)
    pair.a.wait_dead()
    pair.a.start()
    assert post(pair.a, key, headers).headers["idempotency-replayed"] == "true"
    assert pair.charges(key) == 2


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, "queue.Queue[tuple[dict[str, str], bytes]]"]]:
    """A caller's server: its URL, and what it got."""
    got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", got
        server.shutdown()


def test_a_receiver_verifies_the_webhooks_of_both_with_one_secret(pair: Pair) -> None:
    key = pair.key()
    shown = [server.darkroom("keys", "webhook-secret", pair.key_id(key)).stdout.strip() for server in pair.servers]
    assert shown[0] == shown[1]
    assert shown[0].startswith("whsec_")
    client = OpenAI(api_key="x", base_url="http://x")
    with receiver() as (url, got):
        for server in pair.servers * 2:  # any of them sends each
            answer = post(server, key, background=True, webhook=url)
            headers, content = got.get(timeout=CALL_LIMIT_S)
            client.webhooks.verify_signature(content, headers, secret=shown[0])
            assert json.loads(content)["data"]["id"] == answer.json()["id"]


def test_the_private_listener_takes_signed_requests_only(pair: Pair) -> None:
    listener = pair.a.settings["gateway_url"]
    for path in ("/v1/models", "/readyz", "/metrics"):
        headers = {"Authorization": f"Bearer {pair.key()}", "x-darkroom-signature": "0" * 64}
        assert httpx.get(f"{listener}{path}", headers=headers, trust_env=False).status_code == 403


@pytest.mark.nightly
def test_the_calls_of_a_dead_server_are_given_up_and_run_again_once(pair: Pair) -> None:
    key, before = pair.key(), forwarded(pair.b)
    with in_background() as pool:
        with pair.held_up(pair.a):
            call = pool.submit(post, pair.a, key, {"Idempotency-Key": "two"})
            until(lambda: len(pair.running(key)) == 1)
            joined = pool.submit(post, pair.b, key, {"Idempotency-Key": "two"})
            until(lambda: forwarded(pair.b) > before)
            assert not joined.done()
            pair.a.kill()
        with pytest.raises(httpx.HTTPError):
            call.result()
        answer = joined.result()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    until(lambda: post(pair.b, key, {"Idempotency-Key": "two"}).status_code == 200, interval_s=1)
    assert pair.charges(key) == 1
    assert pair.b.darkroom("ledger", "--check").returncode == 0
    pair.a.start()
    assert post(pair.a, key, {"Idempotency-Key": "two"}).headers["Idempotency-Replayed"] == "true"
