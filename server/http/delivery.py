"""Ways to answer a running call: as JSON, as JSON after whitespace that keeps the connection alive, or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.backends.storage import Storage
from server.errors import ApiError, retry_after_header
from server.flows.images.request import ImageRequest
from server.flows.images.results import EventKind, image_events, load_answer, truncated_of
from server.http.bodies import hold_body
from server.http.deps import truncated_header
from server.http.sse import event, event_stream
from server.schemas.image_jobs import ImageJobState
from server.services import Services
from server.state.active_calls import ActiveCall
from server.state.active_job import ActiveJob

log = structlog.stdlib.get_logger("darkroom.http")

# In the ASGI scope: what the connection knows of its answer; the job that is answered, and who is attached to it
ARRIVAL, JOB, ATTACHED = "darkroom.arrival", "darkroom.job", "darkroom.attached"
RECORDED = "darkroom.recorded_body"  # and the body of a request that may have to be sent on to another gateway

Result = TypeVar("Result")


class Arrival(Protocol):
    """What the connection of a request knows of the way of its answer."""

    def expect(self) -> None:
        """Prepare for `is_whole`, before the answer is sent."""
        ...

    async def is_whole(self) -> bool:
        """Return whether the answer has arrived whole, once that is known. To be asked when all of it was sent."""
        ...


class CancelOnDisconnect(Response):
    """A response whose work is cancelled when the client disconnects. `make` may leave contexts on the exit stack; they
    are closed after the response. It may `attach` the request to a job, whose answer it then makes."""

    def __init__(self, make: Callable[[AsyncExitStack], Coroutine[Any, Any, ASGIApp]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait until the status is known, then send. Raises ApiError before that."""
        async with AsyncExitStack() as stack:
            scope[ATTACHED] = stack
            answer = await cancel_on_disconnect(receive, self._make(stack))
            if answer is None:
                return
            if JOB in scope:
                await deliver(scope[JOB], answer, scope, receive, send)
            else:
                await answer(scope, receive, send)


class WatchedResponse(Response):
    """JSON that calls `lost` if its connection shows that it has not arrived whole. That is known to `darkroom serve`
    alone."""

    def __init__(self, body: str, headers: dict[str, str], lost: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(body, headers=headers, media_type="application/json")
        self._lost = lost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, and leave a task that waits until its arrival is known."""
        arrival: Arrival | None = scope.get(ARRIVAL)
        if arrival is not None:
            arrival.expect()
        await super().__call__(scope, receive, send)
        if arrival is not None:
            services: Services = scope["app"].state.services
            services.running.background.spawn(self._tell_if_lost(arrival))

    async def _tell_if_lost(self, arrival: Arrival) -> None:
        if not await arrival.is_whole():
            await self._lost()


class KeepAliveJson:
    """A JSON response that starts before its body is known and sends a space every `interval_s` until then.

    The status is sent by then, so an error can only end the body early, which clients report as a connection error. The
    call keeps its error for the retry.
    """

    def __init__(
        self, body: Callable[[], Coroutine[Any, Any, bytes]], interval_s: float, headers: dict[str, str]
    ) -> None:
        self._body = body
        self._interval_s = interval_s
        self._start = Response(media_type="application/json", headers=headers)
        del self._start.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response: its head at once, spaces while the body is not known, then the body."""
        await send({"type": "http.response.start", "status": 200, "headers": self._start.raw_headers})
        try:
            body = await cancel_on_disconnect(receive, self._send_spaces(send))
        except ApiError as error:
            log.info("response aborted", code=error.label)
            return
        if body is not None:
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_spaces(self, send: Send) -> bytes:
        body = asyncio.create_task(self._body())
        try:
            while not (await asyncio.wait({body}, timeout=self._interval_s))[0]:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
            return await body
        finally:
            body.cancel()


def attach(request: Request, job: ActiveJob[Any]) -> None:
    """Let a request that CancelOnDisconnect answers be of this job: its client is attached until the answer has
    arrived, or is lost."""
    hold_body(request, job)
    request.scope[JOB] = job
    request.scope[ATTACHED].enter_context(job.listening())


async def call_answer(
    request: Request, call: ActiveCall, asked: ImageRequest, headers: dict[str, str], keepalive: bool, _: AsyncExitStack
) -> ASGIApp:
    """Return the answer of an image call, once its status is known; to be made by CancelOnDisconnect. Raises ApiError
    before that."""
    services: Services = request.app.state.services
    storage, keepalive_s = services.stores.files, services.settings.keepalive_s
    attach(request, call)
    try:
        await call.admission()
        request.scope.get(RECORDED, []).clear()  # it runs here
        if asked.stream:
            return event_stream(_call_events(storage, call, asked), keepalive_s, _with_id(headers, call))
        if keepalive:
            call.response_started = True
            return KeepAliveJson(partial(_call_json, storage, call), keepalive_s, _with_id(headers, call))
        body = await _call_json(storage, call)
        cut = truncated_header(truncated_of(asked, await call.result()))
        return Response(body, media_type="application/json", headers=_with_id(headers, call) | cut)
    except ApiError as error:
        error.headers.update(_with_id(headers, call))
        raise


async def background_answer(
    request: Request,
    call: ActiveCall,
    describe: Callable[[str], Coroutine[Any, Any, ImageJobState]],
    headers: dict[str, str],
    _: AsyncExitStack,
) -> ASGIApp:
    """Return 202 with the state of a call that goes on without a client, once it is held and queued; to be made by
    CancelOnDisconnect. A client that disconnects before leaves the call as it leaves any other. Raises ApiError."""
    attach(request, call)
    await call.admission()
    call.detach()
    state = await describe(call.call.id)
    headers = headers | {
        "x-darkroom-job": call.call.id,
        "Location": f"/v1/images/jobs/{call.call.id}",
        "Retry-After": retry_after_header(state.estimated_s or 0),
        "Preference-Applied": "respond-async",
    }
    return Response(state.model_dump_json(), 202, headers, "application/json")


def _with_id(headers: dict[str, str], call: ActiveCall) -> dict[str, str]:
    """Return the headers with the call's id, unless the call was refused before its admission."""
    known = call.shape is not None or call.replayed
    return headers | ({"x-darkroom-job": call.call.id} if known else {})


async def _call_json(storage: Storage, call: ActiveCall) -> bytes:
    answer = await load_answer(storage, await call.result())
    return await asyncio.to_thread(lambda: answer.model_dump_json().encode())


async def _call_events(storage: Storage, call: ActiveCall, asked: ImageRequest) -> AsyncIterator[ServerSentEvent]:
    kind: EventKind = "image_edit" if asked.endpoint == "images.edits" else "image_generation"
    try:
        async for item in image_events(storage, call, kind):
            yield event(item.model_dump(exclude_none=True), item.type)
    except ApiError as error:
        yield event(error.body(), "error")


async def deliver(job: ActiveJob[Any], answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a job's answer. Its client, which is attached, stays so until it is known whether the answer has arrived."""
    whole, arrival = False, scope.get(ARRIVAL)
    if arrival is not None:
        arrival.expect()

    async def note(message: Message) -> None:
        nonlocal whole
        await send(message)
        whole = message["type"] == "http.response.body" and not message.get("more_body", False)

    await answer(scope, receive, note)
    if whole:
        attached = ExitStack()
        attached.enter_context(job.listening())
        services: Services = scope["app"].state.services
        services.running.background.spawn(_confirm(job, arrival, attached))


async def _confirm(job: ActiveJob[Any], arrival: Arrival | None, attached: ExitStack) -> None:
    """Record that an answer has arrived, if it has. A server other than `darkroom serve` knows only that it was
    sent."""
    with attached:
        if arrival is None or await arrival.is_whole():
            await job.confirm_arrival()


async def prepend(first: Result, rest: AsyncIterator[Result]) -> AsyncIterator[Result]:
    """Yield the awaited first item of a stream, then the rest: so a failure of the first comes before the answer
    begins."""
    yield first
    async for item in rest:
        yield item


async def first_within(
    events: AsyncGenerator[Result, None], limit_s: float | None, stack: AsyncExitStack
) -> tuple[Result | None, AsyncIterator[Result]]:
    """Wait for the first event, `limit_s` at most; return it, or None if it has not come, and all of the events. A
    failure of one that comes in time is raised here, before the answer begins; a later one by the events."""
    first = asyncio.ensure_future(anext(events))
    stack.push_async_callback(_cancel, first)  # the events can't be closed while it waits for one
    await asyncio.wait({first}, timeout=limit_s)
    return first.result() if first.done() else None, _continued(first, events)


async def _continued(first: asyncio.Future[Result], rest: AsyncIterator[Result]) -> AsyncIterator[Result]:
    async for item in prepend(await first, rest):
        yield item


async def _cancel(waiting: asyncio.Future[Any]) -> None:
    waiting.cancel()
    await asyncio.wait({waiting})


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of `work`, or None if the client disconnects first; `work` is then cancelled."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_wait_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.wait({task})  # it has released what it held before we return


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
