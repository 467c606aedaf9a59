"""Answers that do not arrive: whoever sends the same body again gets the image that was drawn, without any header, and
is charged once. Whoever has an answer and sends the same body again wants a second image."""

import contextlib
import json
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import PLAIN, Server, assert_clean, charges, count_rows, suspended, until

IMAGES, RESPONSES, CHATS = "/v1/images/generations", "/v1/responses", "/v1/chat/completions"
GEMINI = "/v1beta/models/alpha-image-2-count:generateContent"
SMALL = {"size": "256x256", "steps": 1}
TOOL = {"type": "image_generation", "model": "alpha-image-2-count", **SMALL}
BODIES: dict[str, dict[str, Any]] = {
    IMAGES: {"model": "alpha-image-2-count", **SMALL, "response_format": "b64_json"},
    RESPONSES: {"model": "starter-chat", "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 16},
    CHATS: {"model": "alpha-image-2-count", **SMALL},
    GEMINI: {"generationConfig": {"responseModalities": ["IMAGE"]}},
}
ROUTES = [
    pytest.param(path, id=name) for name, path in zip(("image", "response", "chat", "gemini"), BODIES, strict=True)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path, chat_configs: Path) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("home"), weights, chat_configs, program=PLAIN).start()
    yield running
    running.kill()


def body_of(path: str, prompt: str, **more: Any) -> dict[str, Any]:
    said = {
        IMAGES: {"prompt": prompt},
        RESPONSES: {"input": prompt},
        CHATS: {"messages": [{"role": "user", "content": prompt}]},
        GEMINI: {"contents": [{"role": "user", "parts": [{"text": prompt}]}]},
    }
    return BODIES[path] | said[path] | more


def send(server: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    with server.http() as client:
        answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


@contextlib.contextmanager
def sent(
    server: Server, path: str, body: dict[str, Any], version: str = "1.1", **headers: str
) -> Iterator[socket.socket]:
    """A connection on which a request was sent."""
    content = json.dumps(body).encode()
    fields = {"Host": "x", "Authorization": f"Bearer {server.key}", "Content-Length": len(content), **headers}
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    with server.connection(f"POST {path} HTTP/{version}\n{head}\n", content) as connection:
        yield connection


def read_whole(connection: socket.socket) -> None:
    """Read an answer to its last byte."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65_536)
    head, _, rest = answer.partition(b"\r\n\r\n")
    left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(rest)
    while left > 0:
        left -= len(connection.recv(65_536))


def reset(connection: socket.socket) -> None:
    """Close a connection as a proxy does that gives up."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def wait_charged(server: Server, count: int) -> None:
    until(lambda: charges(server) == count)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_answer_that_is_reset_in_its_midst_is_given_to_the_same_request(
    server: Server, path: str, version: str
) -> None:
    before, body = charges(server), body_of(path, f"reset {version}")
    with sent(server, path, body, version) as connection:
        connection.recv(20)  # the answer has begun
        reset(connection)
    again = send(server, path, body)
    assert charges(server) == before + 1
    assert again.headers["idempotency-replayed"] == "true"
    send(server, path, body)  # that one has arrived: a third request wants another image
    assert charges(server) == before + 2


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_answer_that_has_arrived_is_followed_by_another_image(server: Server, path: str, version: str) -> None:
    before, body = charges(server), body_of(path, f"twice {version}")
    with sent(server, path, body, version) as connection:
        read_whole(connection)
        send(server, path, body)  # while the first connection is still open
    send(server, path, body)
    assert charges(server) == before + 3


def test_an_answer_that_nobody_reads_is_lost_when_its_connection_is(server: Server) -> None:
    before, body = charges(server), body_of(IMAGES, "unread")
    with sent(server, IMAGES, body):
        wait_charged(server, before + 1)
        send(server, IMAGES, body)  # the first client is still there
        assert charges(server) == before + 2
    assert send(server, IMAGES, body).headers["idempotency-replayed"] == "true"
    assert charges(server) == before + 2


@pytest.mark.parametrize("count", ["0", "1", None])
@pytest.mark.parametrize("path", [IMAGES, RESPONSES])
def test_a_call_that_goes_on_without_its_client_is_joined(server: Server, path: str, count: str | None) -> None:
    """As a loop around an SDK sends it, whose count begins at 0 again."""
    before, body = charges(server), body_of(path, f"a loop {count}")
    with suspended(server.readiness()["worker_pid"]):
        with sent(server, path, body, **{"x-stainless-retry-count": "0"}):
            until(lambda: server.readiness()["jobs"] == 1)
        server.readiness()  # by then the server has seen that its client has left
    send(server, path, body, **({} if count is None else {"x-stainless-retry-count": count}))
    assert charges(server) == before + 1


def test_a_call_of_a_client_that_says_nothing_of_retries_ends_with_it(server: Server) -> None:
    before, body = charges(server), body_of(IMAGES, "cancelled")
    with suspended(server.readiness()["worker_pid"]), sent(server, IMAGES, body):
        until(lambda: server.readiness()["jobs"] == 1)
    until(lambda: count_rows(server, "holds", "state = 'held'") == 0)
    assert "idempotency-replayed" not in send(server, IMAGES, body).headers
    assert charges(server) == before + 1


def test_a_lost_word_of_a_call_in_the_background_is_said_again(server: Server) -> None:
    before, body = charges(server), body_of(IMAGES, "in the background", background=True)
    del body["response_format"]
    with sent(server, IMAGES, body) as connection:
        wait_charged(server, before + 1)
        reset(connection)
    with server.http() as client:
        answers = [client.post(IMAGES, json=body) for _ in "12"]
    assert [answer.status_code for answer in answers] == [202, 202]
    wait_charged(server, before + 2)
    assert answers[0].json()["id"] != answers[1].json()["id"]


@pytest.mark.nightly  # with a key: tests/e2e/test_retries.py
def test_a_charge_before_a_crash_is_delivered_after_it(server: Server) -> None:
    """Also to whom sends neither an Idempotency-Key nor any other header."""
    before, settings, body = charges(server), server.settings, body_of(IMAGES, "a crash")
    server.kill()
    server.settings = {**settings, "crash_at": "after-capture-commit"}
    server.start()
    with contextlib.suppress(httpx.HTTPError):
        send(server, IMAGES, body)
    assert server.wait_dead() == -signal.SIGKILL
    server.settings = settings
    server.start()
    assert send(server, IMAGES, body).headers["idempotency-replayed"] == "true"
    assert charges(server) == before + 1
    assert_clean(server)
