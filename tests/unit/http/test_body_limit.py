"""The size limit of bodies, by path."""

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from server.errors import TooLarge
from server.http.body_limit import BodyLimitMiddleware

MIB = 1024**2


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    try:
        answer = PlainTextResponse(str(len(await request.body())))
    except TooLarge as error:
        answer = PlainTextResponse(error.message, error.status)
    await answer(scope, receive, send)


async def in_chunks(size: int) -> AsyncIterator[bytes]:
    yield bytes(size - 1)
    yield b"0"


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [
        ("/v1/images/edits", 2 * MIB, 200),
        ("/v1/images/edits", 2 * MIB + 1, 413),
        ("/v1/chat/completions", MIB, 200),
        ("/v1/chat/completions", MIB + 1, 413),
    ],
)
async def test_a_long_body_is_refused_with_and_without_a_declared_length(path: str, size: int, status: int) -> None:
    transport = httpx.ASGITransport(BodyLimitMiddleware(echo, 2 * MIB, {"/v1/chat/": MIB}))
    async with httpx.AsyncClient(transport=transport, base_url="http://darkroom") as client:
        for content in (bytes(size), in_chunks(size)):
            answer = await client.post(path, content=content)
            assert answer.status_code == status
            assert str(size) == answer.text or "larger than" in answer.text
