"""How a running call is answered: as JSON, as JSON after whitespace that keeps the connection busy, or as a stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.flows.answers import EventKind, answer_json, image_events
from server.flows.resolve import ImageCall
from server.flows.running import RunningCall
from server.routes.sse import event, event_stream
from server.services import Services

Result = TypeVar("Result")


class CallAnswer(Response):
    """The answer of one request. It listens to the call from its first moment to its last."""

    def __init__(self, services: Services, call: RunningCall, asked: ImageCall, headers: dict[str, str]) -> None:
        super().__init__()
        self._services = services
        self._call = call
        self._asked = asked
        self._extra = {**headers, "x-darkroom-job": call.ticket.call_id}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait until the status is known, then send. Raises ApiError before that, and sends nothing to who has left."""
        with self._call.listening():
            try:
                answer = await unless_gone(receive, self._answer())
            except ApiError as error:
                error.headers.update(self._extra)
                raise
            if answer is not None:
                await answer(scope, receive, send)

    async def _answer(self) -> Response:
        if self._asked.stream:
            await self._call.admission()
            return event_stream(self._events(), self._services.settings.keepalive_s, self._extra)
        body = await answer_json(self._services, await self._call.result(), self._asked.response_format)
        return Response(body, media_type="application/json", headers=self._extra)

    async def _events(self) -> AsyncIterator[ServerSentEvent]:
        kind: EventKind = "image_edit" if self._asked.endpoint == "images.edits" else "image_generation"
        try:
            async for item in image_events(self._services, self._call, kind):
                yield event(item.model_dump(exclude_none=True), item.type)
        except ApiError as error:
            yield event(error.body(), "error")


class UntilGone(Response):
    """An answer that is given up when its client leaves. Whatever `make` leaves on the stack is closed at the end."""

    def __init__(self, make: Callable[[AsyncExitStack], Coroutine[Any, Any, Response]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait until the status is known, then send. Raises ApiError before that."""
        async with AsyncExitStack() as stack:
            answer = await unless_gone(receive, self._make(stack))
            if answer is not None:
                await answer(scope, receive, send)


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
