"""Clients that connect and say nothing, or half of it: others are answered meanwhile."""

import contextlib
import resource
import select
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.harness import MakeServer, Server, until

pytestmark = pytest.mark.nightly

PATH = "/v1/images/generations"
CALL = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
HALF_HEADERS = f"POST {PATH} HTTP/1.1\nHost: x\n"
LIMIT_S = 20  # for what takes a fraction of a second on an idle machine


def half_body(key: str, length: int = 6_000_000) -> str:
    return f"{HALF_HEADERS}Authorization: Bearer {key}\nContent-Length: {length}\n\n{{"


@pytest.fixture(scope="module")
def server(make_tiny: MakeServer) -> Server:
    """As many descriptors as most systems allow."""
    return make_tiny(descriptors=1024, request_timeout_s="8", max_connections_per_address="5")


@pytest.fixture
def many() -> Iterator[contextlib.ExitStack]:
    """Closes the connections of a test, which may be more than this process is usually allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        yield stack
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it. What it has sent is read."""
    readable = select.poll()  # not select.select: descriptors may be above 1,023
    readable.register(connection, select.POLLIN)
    with contextlib.suppress(ConnectionResetError):
        while readable.poll(0):
            if not connection.recv(100_000):
                return True
        return False
    return True


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(100_000):
            received += data
    return received


def test_a_thousand_half_requests_leave_the_server_answering(server: Server, many: contextlib.ExitStack) -> None:
    other = server.new_key("other")
    heads = [HALF_HEADERS, half_body(server.key), half_body("sk-unknown"), ""]
    connections, slowest_s = [], 0.0
    for number in range(1000):
        connections.append(many.enter_context(server.connection(heads[number % len(heads)])))
        if number % 100 == 99:
            started = time.monotonic()
            with server.http(other) as client:
                assert client.get("/healthz").status_code == 200
                assert client.get("/v1/models").status_code == 200
            slowest_s = max(slowest_s, time.monotonic() - started)
    assert slowest_s < LIMIT_S
    with server.http(other) as client:
        assert client.post(PATH, json=CALL).status_code == 200
    assert sum(map(is_closed, connections)) >= 1000 - 512
    until(lambda: all(map(is_closed, connections)))
    assert "out of system resource" not in server.log


def test_half_a_body_is_408_and_half_a_head_is_closed(server: Server) -> None:
    with (
        server.connection() as silent,
        server.connection(HALF_HEADERS) as half,
        server.connection(half_body(server.key)) as body,
    ):
        answer = read_all(body)
        assert read_all(silent) == read_all(half) == b""
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"request_timeout"' in answer
    assert b"connection: close" in answer.lower()
    assert b"x-request-id" in answer


def test_a_connection_is_used_again(server: Server) -> None:
    with server.connection() as connection:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b'"live"}'):
                answer += connection.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 200")


def test_an_address_has_so_many_connections(server: Server) -> None:
    expectant = half_body(server.key).replace("Content-Length", "Expect: 100-continue\nContent-Length")
    with contextlib.ExitStack() as stack:
        proxied = stack.enter_context(server.connection())  # from 127.0.0.1, which is trusted
        mine = [stack.enter_context(server.connection(source="127.0.0.2")) for _ in range(6)]
        until(lambda: is_closed(mine[0]))
        assert not any(map(is_closed, [proxied, *mine[1:]]))
        for connection in mine[1:]:  # a request that waits for its body does not make room
            connection.sendall(expectant.replace("\n", "\r\n").encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
        with server.connection(source="127.0.0.2") as refused:
            assert read_all(refused).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize(("key", "length", "status"), [("", 2_000_000_000, 413), ("sk-unknown", 60_000_000, 401)])
def test_a_client_that_sends_everything_first_gets_its_refusal(
    server: Server, key: str, length: int, status: int
) -> None:
    with server.connection(half_body(key or server.key, length)) as connection:
        for _ in range(20):
            connection.sendall(bytes(500_000))
        assert connection.recv(100).startswith(f"HTTP/1.1 {status}".encode())
