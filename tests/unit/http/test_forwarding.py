"""What is sent on to another gateway, and what comes back: over a real connection, with a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import JSONResponse

from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.backends.gateway_link import ForwardedRequest, GatewayGone, GatewayLink
from server.clock import Clock
from server.errors import RunsElsewhere
from server.extras import DIALECTS
from server.http import forwarding
from server.http.forwarding import Forwarder, listen
from server.http.public_address import PREFIX
from tests.support.harness import free_port
from tests.support.postgresql import Cluster

REQUEST = ForwardedRequest(
    "GET", "/v1/images/jobs/img_1", [("user-agent", "Caf\xe9/1.0"), ("x-title", "\xfc")], b"", "key_1", "http a 80"
)
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def other_gateway(serve: Serve) -> AsyncIterator[str]:
    """The URL of a server that answers each request by `serve`, which gets its head."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(await reader.readuntil(b"\r\n\r\n"), writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def gateway_link() -> AsyncIterator[GatewayLink]:
    link = GatewayLink("the secret of all gateways")
    try:
        yield link
    finally:
        await link.close()


async def test_headers_that_are_not_ascii_are_sent_as_they_came() -> None:
    heads = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nx-made-by: Caf\xe9\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()

    async with other_gateway(answer) as url, gateway_link() as link, link.send(url, REQUEST, 0.0) as got:
        assert b"".join([chunk async for chunk in got.response.aiter_raw()]) == b"ok"
        assert ("x-made-by", "Caf\xe9") in got.headers
    assert b"user-agent: Caf\xe9/1.0\r\n" in heads[0]
    assert b"x-title: \xfc\r\n" in heads[0]


async def test_the_callers_key_is_not_sent_on_wherever_a_protocol_has_it() -> None:
    heads = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head.decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()

    async def receive() -> MutableMapping[str, Any]:
        return await asyncio.Future()

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    names = ("authorization", "cookie", "api-key", *(name for dialect in DIALECTS for name in dialect.key_headers))
    scope = {
        "app": SimpleNamespace(state=SimpleNamespace(dialects=DIALECTS)),
        "type": "http", "method": "POST", "scheme": "http", "path": "/v1/messages", "raw_path": b"/v1/messages",
        "query_string": b"", "server": ("a", 80), forwarding.RECORDED: [b"{}"],
        "headers": [(name.encode(), b"sk-secret") for name in names] + [(b"idempotency-key", b"one")],
    }  # fmt: skip
    found: Any = SimpleNamespace(find=None, in_reader=lambda *_: asyncio.sleep(0, "still there"))
    async with other_gateway(answer) as url, gateway_link() as link:
        forwarder = Forwarder(found, link, Clock())
        elsewhere = RunsElsewhere("It runs there.", owner="other", key_id="key_1")
        await forwarder.answer(scope, elsewhere, url)(scope, receive, send)
    assert "sk-secret" not in heads[0]
    assert "x-darkroom-key: key_1" in heads[0]
    assert "idempotency-key: one" in heads[0]


async def test_an_answer_goes_on_while_the_database_is_away_and_ends_once_its_server_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = asyncio.Event()  # at the database, without success
    goes_on = asyncio.Event()
    messages: list[MutableMapping[str, Any]] = []
    began = asyncio.Event()

    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        await goes_on.wait()
        writer.write(b"4\r\nlast\r\n0\r\n\r\n")
        await writer.drain()

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)
        if message.get("body"):
            began.set()

    monkeypatch.setattr(forwarding, "POLL_EVERY_S", 0.05)
    with Cluster.temporary() as cluster:
        database = Database(cluster.new("template0"))
        database.migrate()
        async with other_gateway(answer) as url, gateway_link() as link:
            other, mine = GatewayStore(database, "b", url, 60.0), GatewayStore(database, "a", None, 60.0)
            other.register()
            mine.register()
            forwarder, find = Forwarder(mine, link, Clock()), mine.in_reader

            async def seen(*work: Any) -> Any:
                try:
                    return await find(*work)
                except Exception:
                    looked.set()
                    raise

            mine.in_reader = seen  # type: ignore[method-assign]
            async with asyncio.timeout(120):
                sending = asyncio.create_task(forwarder.send(REQUEST, "b", url, send))
                await began.wait()
                await asyncio.to_thread(cluster.stop)
                await looked.wait()
                await asyncio.to_thread(cluster.start)
                goes_on.set()
                await sending
                assert b"".join(message.get("body", b"") for message in messages) == b"firstlast"

                goes_on.clear()
                began.clear()
                sending = asyncio.create_task(forwarder.send(REQUEST, "b", url, send))
                await began.wait()
                other.leave()
                with pytest.raises(GatewayGone, match="given up"):
                    await sending
                goes_on.set()
        database.dispose()


async def test_a_gateway_answers_what_another_asks_of_its_own() -> None:
    scopes: list[MutableMapping[str, Any]] = []

    async def answer(scope: MutableMapping[str, Any], _: Any, send: Any) -> None:
        scopes.append(scope)
        await JSONResponse({"ready": True})(scope, _, send)

    clock = Clock()
    url = f"http://127.0.0.1:{free_port()}"
    async with gateway_link() as link, listen(answer, url, link.secret, clock):
        assert await link.request(url, "POST", "/catalog", b"{}", clock.now()) == (200, {"ready": True})
        older = replace(REQUEST, headers=[])  # its address is without a path
        async with link.send(url, older, clock.now()) as got:
            assert got.status == 200
    assert [scope["server"] for scope in scopes] == [("gateway", 0), ("a", 80)]
    assert [scope[PREFIX] for scope in scopes] == ["", ""]
