"""A client that stops reading holds little memory, and not for ever. On uvicorn, over a socket."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import pytest
import uvicorn
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.cli.http_protocol import ConnectionLimits, drop_late, protocol_class
from tests.support.polling import eventually

CHUNK = bytes(100_000)
KERNEL_BYTES = 64_000_000  # more than both sockets' buffers hold


@dataclass
class Serving:
    """Connects to a server and sends a request, and knows when the server last looked for late clients."""

    port: int
    looked_at: float = 0.0

    async def connect(self) -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return client


@asynccontextmanager
async def serving(app: ASGIApp, header_timeout_s: float, send_timeout_s: float) -> AsyncIterator[Serving]:
    """A server of this app."""
    http = protocol_class(ConnectionLimits(9, 9), header_timeout_s, send_timeout_s)
    server = uvicorn.Server(uvicorn.Config(app, http=http, lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    running = Serving(listener.getsockname()[1])

    async def poll() -> None:
        while True:
            await asyncio.sleep(0.1)
            drop_late(server.server_state.connections)
            running.looked_at = time.monotonic()

    tasks = [asyncio.create_task(server._serve([listener])), asyncio.create_task(poll())]
    try:
        yield running
    finally:
        server.should_exit = server.force_exit = True
        await tasks[0]
        tasks[1].cancel()


def _is_past(server: Serving, moment: float) -> bool:
    """Whether the server has looked for late clients since."""
    return server.looked_at > moment


async def test_a_stream_waits_for_its_reader_and_ends_when_nothing_is_read() -> None:
    made, ended = 0, asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal made
        try:
            while True:
                made += len(CHUNK)
                yield CHUNK
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(chunks())(scope, receive, send)

    async with serving(app, header_timeout_s=60, send_timeout_s=1) as server:
        with await server.connect():
            await asyncio.wait_for(ended.wait(), 60)
    assert made < KERNEL_BYTES


@pytest.mark.slow
async def test_a_slow_reader_of_a_large_answer_gets_all_of_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(KERNEL_BYTES // 4))(scope, receive, send)

    async with serving(app, header_timeout_s=0.5, send_timeout_s=5) as server:
        received = 0
        with await server.connect() as client, suppress(ConnectionResetError):
            while data := await asyncio.get_running_loop().sock_recv(client, 500_000):
                received += len(data)
                await asyncio.sleep(0.02)
    assert received > KERNEL_BYTES // 4


async def test_between_two_requests_a_client_has_more_time_than_for_headers() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"ok")(scope, receive, send)

    async with serving(app, header_timeout_s=0.3, send_timeout_s=60) as server:
        loop = asyncio.get_running_loop()
        with await server.connect() as client:
            for _ in range(2):
                assert (await loop.sock_recv(client, 10_000)).endswith(b"ok")
                late = time.monotonic() + 0.3  # for headers
                await eventually(partial(_is_past, server, late))
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await loop.sock_recv(client, 10_000)).endswith(b"ok")
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHo")
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(client, 10_000), 60) == b""
