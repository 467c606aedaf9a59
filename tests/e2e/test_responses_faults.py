"""Responses when the server, a worker or the connection dies, and under a moderation policy."""

import base64
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.test_responses_by_sdk import FORCED_IMAGE, LIMITS, MODEL, image_call
from tests.support.harness import PLAIN, Server, assert_clean, charges, count_rows, suspended, until
from tests.support.policies import write_policy
from tests.support.response_shapes import check_response
from tests.support.tiny_classifiers import make_image_classifier

PATH = "/v1/responses"
LARGE: Any = {"type": "image_generation", "model": "beta-3.1-flash-image-4k-count"}
SLOW: Any = {"model": MODEL, "input": "a city", "tools": [LARGE], "tool_choice": "required", **LIMITS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path, chat_configs: Path) -> Iterator[Server]:
    """A server that survives the faults of its tests."""
    running = Server(tmp_path_factory.mktemp("home"), weights, chat_configs, program=PLAIN).start()
    yield running
    running.kill()


def generating(server: Server) -> bool:
    return bool(server.readiness()["jobs"] == 1)


@pytest.mark.nightly
def test_a_background_response_is_failed_after_kill_9(server: Server) -> None:
    before = charges(server)
    with suspended(server.readiness()["worker_pid"]):
        response = server.openai().responses.create(background=True, **SLOW)
        until(lambda: generating(server))
        server.kill()
    server.start()
    with server.http() as client:
        body = client.get(f"/v1/responses/{response.id}").json()
        check_response(body)
        assert body["status"] == "failed"
        assert body["error"]["code"] == "server_error"
        assert "server stopped" in body["error"]["message"]
        stream = client.get(f"/v1/responses/{response.id}", params={"stream": "true"}).text
    assert "event: response.failed" in stream
    assert stream.endswith("data: [DONE]\n\n")
    assert charges(server) == before
    assert_clean(server)
    assert server.openai().responses.create(model=MODEL, input="hello", max_output_tokens=16).id


SMALL: Any = {"type": "image_generation", "size": "256x256", "steps": 1}
KEYED: Any = {"model": MODEL, "input": "a star", "tools": [SMALL], "tool_choice": "required", **LIMITS}


def post(server: Server, body: Any, **headers: str) -> httpx.Response:
    names = {"idempotency_key": "Idempotency-Key", "retry_count": "x-stainless-retry-count"}
    with server.http() as client:
        return client.post(PATH, json=body, headers={names[name]: value for name, value in headers.items()})


def image_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    (call,) = (item for item in answer.json()["output"] if item["type"] == "image_generation_call")
    return str(call["result"])


def test_after_kill_9_a_retry_gets_the_charged_image(server: Server) -> None:
    body, before, settings = {**KEYED, "store": False}, charges(server), server.settings
    server.kill()
    server.settings = {**settings, "crash_at": "after-capture-commit"}
    server.start()
    with contextlib.suppress(httpx.HTTPError):
        post(server, body, idempotency_key="crash")
    assert server.wait_dead() == -signal.SIGKILL
    server.settings = settings
    server.start()
    again = post(server, body, idempotency_key="crash")
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["status"] == "completed"
    assert base64.b64decode(image_of(again)).startswith(b"\x89PNG")
    assert charges(server) == before + 1
    assert_clean(server)
    with server.http() as client:
        assert client.get(f"/v1/responses/{again.json()['id']}").status_code == 404


@pytest.mark.parametrize("store", [True, False])
def test_an_answer_that_is_not_stored_is_still_replayed(server: Server, store: bool) -> None:
    body, before = {**KEYED, "store": store}, charges(server)
    first, again = (post(server, body, idempotency_key=f"store {store}") for _ in range(2))
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert image_of(again) == image_of(first)
    assert post(server, {**body, "input": "a moon"}, idempotency_key=f"store {store}").status_code == 422
    assert charges(server) == before + 1


@pytest.mark.parametrize("store", [True, False])
def test_a_retry_of_the_sdks_gets_the_response_whose_connection_was_cut(server: Server, store: bool) -> None:
    body, before = {**KEYED, "store": store, "input": f"a house, {store}"}, charges(server)
    with (
        suspended(server.readiness()["worker_pid"]),
        server.unread_call(PATH, body, **{"x-stainless-retry-count": "0"}),
    ):
        until(lambda: generating(server))
    joined = post(server, body, retry_count="1")
    replayed = post(server, body, retry_count="2")
    assert image_of(replayed) == image_of(joined)
    assert replayed.headers["idempotency-replayed"] == "true"
    assert charges(server) == before + 1
    image_of(post(server, body, retry_count="0"))
    assert charges(server) == before + 2
    assert_clean(server)


def test_a_dead_image_worker_fails_the_response_uncharged_and_the_next_one_works(server: Server) -> None:
    before = charges(server)
    worker_pid = server.readiness()["worker_pid"]
    with suspended(worker_pid):
        response = server.openai().responses.create(background=True, **SLOW)
        until(lambda: generating(server))
        os.kill(worker_pid, signal.SIGKILL)
    until(lambda: server.openai().responses.retrieve(response.id).status == "failed")
    failed = server.openai().responses.retrieve(response.id)
    assert failed.error is not None
    assert failed.error.code == "server_error"
    assert charges(server) == before
    assert image_call(server.openai(timeout=900).responses.create(model=MODEL, input="a boat", **FORCED_IMAGE)).result
    assert_clean(server)


def test_a_disconnect_cancels_a_response_uncharged(server: Server) -> None:
    before = charges(server)
    with suspended(server.readiness()["worker_pid"]), server.unread_call(PATH, SLOW):
        until(lambda: generating(server))
    until(lambda: server.readiness()["jobs"] == 0 and server.readiness()["chat"]["jobs"] == 0)
    until(lambda: count_rows(server, "holds", "state = 'held'") == 0)
    assert charges(server) == before
    assert_clean(server)


@pytest.mark.nightly
def test_the_policy_applies_to_responses_and_chats(tmp_path: Path, weights: Path, chat_configs: Path) -> None:
    make_image_classifier(tmp_path / "grim")
    settings = {"moderation": str(write_policy(tmp_path, "output")), "preload": "false"}
    server = Server(tmp_path / "home", weights, chat_configs, settings).start()
    try:
        client = server.openai(timeout=900)
        messages: Any = [{"role": "user", "content": "an assault rifle"}]
        for send in (
            lambda: client.responses.create(model=MODEL, input="draw an assault rifle"),
            lambda: client.responses.create(model=MODEL, input=messages, stream=True),
            lambda: client.chat.completions.create(model=MODEL, messages=messages),
        ):
            with pytest.raises(openai.BadRequestError, match="no-weapons") as raised:
                send()
            assert raised.value.code == "moderation_blocked"
        response = client.responses.create(model=MODEL, input="a boat", **FORCED_IMAGE)
        call = image_call(response)
        assert (call.status, call.result) == ("failed", None)
        assert call.error.code == "moderation_blocked"
        assert call.error.moderation_details.moderation_stage == "output"
        assert charges(server) == 0
        assert "nothing-grim" in server.darkroom("moderation").stdout
        assert_clean(server)
    finally:
        server.kill()
