"""How a running call is answered: as JSON, as JSON after whitespace that keeps the connection busy, or as a stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import structlog
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError
from server.flows.images.request import ImageCall
from server.flows.images.results import EventKind, answer_of, image_events
from server.http.sse import event, event_stream
from server.services import Services
from server.state.active_calls import RunningCall

log = structlog.stdlib.get_logger("darkroom.http")

Result = TypeVar("Result")


class CallAnswer(Response):
    """The answer of one request. It listens to the call from its first moment to its last."""

    def __init__(
        self, services: Services, call: RunningCall, asked: ImageCall, headers: dict[str, str], *, keepalive: bool
    ) -> None:
        super().__init__()
        self._services = services
        self._call = call
        self._asked = asked
        self._keepalive = keepalive
        replayed = {"Idempotency-Replayed": "true"} if call.replayed else {}
        self._extra = {**headers, **replayed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait until the status is known, then send. Raises ApiError before that, and sends nothing to who has left."""
        with self._call.listening():
            try:
                answer = await unless_gone(receive, self._answer())
            except ApiError as error:
                error.headers.update(self._own_headers())
                raise
            if answer is not None:
                await answer(scope, receive, send)

    async def _answer(self) -> ASGIApp:
        every_s = self._services.settings.keepalive_s
        if self._asked.stream:
            await self._call.admission()
            return event_stream(self._events(), every_s, self._own_headers())
        if self._keepalive:
            await self._call.admission()
            self._call.answer_begun = True
            return KeptAlive(self._json, every_s, self._own_headers())
        return Response(await self._json(), media_type="application/json", headers=self._own_headers())

    async def _json(self) -> bytes:
        answer = await answer_of(self._services, await self._call.result())
        return await asyncio.to_thread(lambda: answer.model_dump_json().encode())

    def _own_headers(self) -> dict[str, str]:
        """With the call's id, unless it was turned away before there was anything to know of it."""
        known = self._call.shape is not None or self._call.replayed
        return {**self._extra, "x-darkroom-job": self._call.ticket.call.id} if known else self._extra

    async def _events(self) -> AsyncIterator[ServerSentEvent]:
        kind: EventKind = "image_edit" if self._asked.endpoint == "images.edits" else "image_generation"
        try:
            async for item in image_events(self._services, self._call, kind):
                yield event(item.model_dump(exclude_none=True), item.type)
        except ApiError as error:
            yield event(error.body(), "error")


class UntilGone(Response):
    """An answer that is given up when its client leaves. Whatever `make` leaves on the stack is closed at the end."""

    def __init__(self, make: Callable[[AsyncExitStack], Coroutine[Any, Any, ASGIApp]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait until the status is known, then send. Raises ApiError before that."""
        async with AsyncExitStack() as stack:
            answer = await unless_gone(receive, self._make(stack))
            if answer is not None:
                await answer(scope, receive, send)


class KeptAlive:
    """A JSON answer that begins before its body is known, with a space from time to time until it is.

    A failure can't change the status any more: the body breaks off, so that no client takes it for whole, and the call
    keeps its error for the retry.
    """

    def __init__(self, body: Callable[[], Coroutine[Any, Any, bytes]], every_s: float, headers: dict[str, str]) -> None:
        self._body = body
        self._every_s = every_s
        self._start = Response(media_type="application/json", headers=headers)
        del self._start.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or as much as there is to send."""
        await send({"type": "http.response.start", "status": 200, "headers": self._start.raw_headers})
        try:
            body = await unless_gone(receive, self._send_spaces(send))
        except ApiError as error:
            log.info("broke off an answer", code=error.code)
            return
        if body is not None:
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_spaces(self, send: Send) -> bytes:
        body = asyncio.create_task(self._body())
        try:
            while not (await asyncio.wait({body}, timeout=self._every_s))[0]:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
            return await body
        finally:
            body.cancel()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The work's result, or None as soon as the client has closed the connection."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.wait({task})  # what it held is free before we go on


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
