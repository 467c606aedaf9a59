"""A client that stops reading holds little memory, and not for ever. On uvicorn, over a socket."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.cli.connection_limits import ConnectionLimits
from server.cli.http_protocol import drop_late, protocol_class

CHUNK = bytes(100_000)
KERNEL_BYTES = 64_000_000  # more than both sockets' buffers hold
Connect = Callable[[], Awaitable[socket.socket]]


@asynccontextmanager
async def serving(app: ASGIApp, header_timeout_s: float, send_timeout_s: float) -> AsyncIterator[Connect]:
    """A function that connects to a server of this app and sends a request."""
    http = protocol_class(ConnectionLimits(9, 9), header_timeout_s, send_timeout_s)
    server = uvicorn.Server(uvicorn.Config(app, http=http, lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)

    async def look() -> None:
        while True:
            await asyncio.sleep(0.1)
            drop_late(server.server_state.connections)

    async def connect() -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return client

    tasks = [asyncio.create_task(server._serve([listener])), asyncio.create_task(look())]
    try:
        yield connect
    finally:
        server.should_exit = server.force_exit = True
        await tasks[0]
        tasks[1].cancel()


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

    async with serving(app, header_timeout_s=60, send_timeout_s=1) as connect:
        with await connect():
            await asyncio.wait_for(ended.wait(), 60)
    assert made < KERNEL_BYTES


async def test_a_slow_reader_of_a_large_answer_gets_all_of_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(KERNEL_BYTES // 4))(scope, receive, send)

    async with serving(app, header_timeout_s=0.5, send_timeout_s=5) as connect:
        received = 0
        with await connect() as client, suppress(ConnectionResetError):
            while data := await asyncio.get_running_loop().sock_recv(client, 500_000):
                received += len(data)
                await asyncio.sleep(0.02)
    assert received > KERNEL_BYTES // 4


async def test_between_two_requests_a_client_has_more_time_than_for_headers() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"ok")(scope, receive, send)

    async with serving(app, header_timeout_s=0.3, send_timeout_s=60) as connect:
        loop = asyncio.get_running_loop()
        with await connect() as client:
            for _ in range(2):
                assert (await loop.sock_recv(client, 10_000)).endswith(b"ok")
                await asyncio.sleep(1)  # some times as long as headers may take
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await loop.sock_recv(client, 10_000)).endswith(b"ok")
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHo")
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(client, 10_000), 60) == b""
