"""The limits of bodies: size by path, time, and nothing before the key is known."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from server.errors import ApiError, RequestTimedOut
from server.http.body_limit import BodyLimitMiddleware, body_lease
from server.state.body_budget import FREE_BYTES, BodyBudget

MIB = 1024**2


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that knows every client's key, except below /admin/."""
    request = Request(scope, receive)
    try:
        if not scope["path"].startswith("/admin/"):
            await body_lease(request).begin("key")
        answer = JSONResponse(len(await request.body()))
    except ApiError as error:
        answer = JSONResponse(error.body(), error.status)
    await answer(scope, receive, send)


async def in_chunks(size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, 64 * 1024):
        yield bytes(min(64 * 1024, size - start))


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [
        ("/v1/images/edits", 3 * MIB, 200),
        ("/v1/chat/completions", MIB, 200),
        ("/v1/chat/completions", MIB + 1, 413),
        ("/admin/swap", FREE_BYTES, 200),
        ("/admin/swap", FREE_BYTES + 1, 413),
    ],
)
async def test_a_long_body_is_refused_with_and_without_a_declared_length(path: str, size: int, status: int) -> None:
    budget = BodyBudget(1024 * MIB, 1024 * MIB)
    transport = httpx.ASGITransport(BodyLimitMiddleware(echo, budget, MIB, timeout_s=60))
    async with httpx.AsyncClient(transport=transport, base_url="http://darkroom") as client:
        declared = {"Content-Length": str(size)}
        for headers in (declared, {}):
            answer = await client.post(path, content=in_chunks(size), headers=headers)
            assert answer.status_code == status
            assert str(size) == answer.text or "larger than" in answer.text
        too_long = await client.post("/v1/images/edits", content=b"", headers={"Content-Length": str(900 * MIB)})
        assert too_long.status_code == 413
    assert budget.in_flight_bytes == 0


@pytest.mark.slow
async def test_a_body_that_trickles_is_ended_and_a_slow_one_is_not() -> None:
    async def read(pause_s: float, chunk_bytes: int) -> int:
        async def receive() -> Message:
            nonlocal chunks
            await asyncio.sleep(pause_s)
            chunks -= 1
            return {"type": "http.request", "body": bytes(chunk_bytes), "more_body": chunks > 0}

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            await body_lease(request).begin("key")
            sizes.append(len(await request.body()))

        async def send(_: Message) -> None: ...

        chunks, sizes = 10, list[int]()
        limited = BodyLimitMiddleware(app, BodyBudget(MIB, MIB), 100 * MIB, timeout_s=1.5)
        await limited({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
        return sizes[0]

    assert await read(pause_s=0.2, chunk_bytes=FREE_BYTES) == 10 * FREE_BYTES
    with pytest.raises(RequestTimedOut, match="64 KiB"):
        await read(pause_s=0.2, chunk_bytes=100)
    with pytest.raises(RequestTimedOut):
        await read(pause_s=60, chunk_bytes=FREE_BYTES)


async def test_a_body_of_two_lengths_is_refused_and_its_connection_closed() -> None:
    transport = httpx.ASGITransport(BodyLimitMiddleware(echo, BodyBudget(MIB, MIB), MIB, timeout_s=60))
    async with httpx.AsyncClient(transport=transport, base_url="http://darkroom") as client:
        headers = {"Content-Length": "3", "Transfer-Encoding": "chunked"}
        answer = await client.post("/v1/chat/completions", content=b"abc", headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")


@pytest.mark.parametrize("body", [b"", b"no gzip", bytes(2 * MIB)])
async def test_what_a_get_brings_does_not_end_the_stream_that_it_asked_for(body: bytes) -> None:
    """Streams wait for their client to leave, and nobody reads what else it sends."""
    messages: list[Message] = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def send(_: Message) -> None: ...

    limited = BodyLimitMiddleware(stream, BodyBudget(MIB, MIB), MIB, timeout_s=60)
    headers = [(b"content-encoding", b"gzip")]
    await limited({"type": "http", "method": "GET", "path": "/admin/events", "headers": headers}, receive, send)
    assert messages == []
