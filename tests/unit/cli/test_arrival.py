"""What a connection shows of an answer's way, on real sockets."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from server.cli import arrival
from server.cli.arrival import AnswerArrival

ANSWER = b"x" * 100_000


class Connection(asyncio.Protocol):
    """The server's side, which has answered."""

    def __init__(self) -> None:
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.arrival = AnswerArrival(transport)
        self.arrival.expect()
        transport.write(ANSWER)
        self.made.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.arrival.settle(False)
        else:
            self.arrival.follow_closing()


@contextlib.asynccontextmanager
async def answered() -> AsyncIterator[tuple[Connection, socket.socket]]:
    connection, loop = Connection(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: connection, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        await connection.made.wait()
        yield connection, client
    server.close()


async def read_all(client: socket.socket) -> None:
    left = len(ANSWER)
    while left:
        left -= len(await asyncio.get_running_loop().sock_recv(client, left))


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("closes", ["client", "server", "nobody"])
async def test_an_answer_that_was_read_has_arrived(closes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if closes == "nobody":
        monkeypatch.setattr(arrival, "RESET_WITHIN_S", 0.05)  # else the end of the connection tells it before
    async with answered() as (connection, client):
        if closes == "server":
            connection.transport.close()
        await read_all(client)
        if closes != "nobody":
            client.close()
        assert await connection.arrival.is_whole()


@pytest.mark.parametrize("closes", [socket.socket.close, reset])
@pytest.mark.parametrize("server_closes", [False, True])
async def test_an_answer_that_was_not_read_to_its_end_is_lost(
    closes: Callable[[socket.socket], None], server_closes: bool
) -> None:
    async with answered() as (connection, client):
        if server_closes:
            connection.transport.close()
        await asyncio.get_running_loop().sock_recv(client, 1000)
        closes(client)
        assert not await connection.arrival.is_whole()


async def test_the_next_request_shows_that_the_answer_was_read() -> None:
    async with answered() as (connection, client):
        await read_all(client)
        asked = asyncio.create_task(connection.arrival.is_whole())
        connection.arrival.settle(True)
        connection.arrival.settle(False)  # what comes later changes nothing
        assert await asked
