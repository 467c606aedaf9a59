"""Requests about calls that run on another gateway: sent there, once, and taken from there on a private listener."""

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import urlsplit

import structlog
import uvicorn
from fastapi.responses import Response
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.accounts.gateways import GatewayStore
from server.backends.gateway_link import BadSignature, ForwardedRequest, GatewayGone, GatewayLink, verify, verify_body
from server.clock import Clock
from server.errors import DatabaseBusy, Forbidden, Overloaded, RunsElsewhere, StartError
from server.http.delivery import RECORDED, cancel_on_disconnect
from server.http.deps import FORWARDED, key_headers
from server.http.dialect import dialects_of
from server.http.errors import send_error
from server.http.public_address import NAMED_HOST, PREFIX
from server.telemetry.call_trace import current_trace

log = structlog.stdlib.get_logger("darkroom.gateways")

POLL_EVERY_S = 2.0
GONE = "The server that runs this call does not answer any more. Please send the request again."


class BodyRecorder:
    """ASGI middleware: keeps the body of a request, which may be a retry, until its call runs here or its answer
    begins."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, with its body recorded."""
        if scope["type"] != "http" or FORWARDED in scope:
            await self.app(scope, receive, send)
            return
        chunks: list[bytes] = scope.setdefault(RECORDED, [])

        async def record() -> Message:
            message = await receive()
            if message["type"] == "http.request" and RECORDED in scope:
                chunks.append(message.get("body", b""))
            return message

        async def delete(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope.pop(RECORDED, None)
                chunks.clear()
            await send(message)

        await self.app(scope, record, delete)


class Forwarder:
    """Sends requests to the gateways that run the calls that they are about."""

    def __init__(self, gateways: GatewayStore, link: GatewayLink, clock: Clock) -> None:
        self._gateways = gateways
        self._link = link
        self._clock = clock

    async def find_url(self, scope: Scope, error: RunsElsewhere) -> str | None:
        """Return the URL of the gateway to send the request to; None if it is answered here: it was sent on before, or
        its call ran here."""
        if RECORDED not in scope or error.owner == self._gateways.owner:
            return None
        gateway = await self._gateways.in_reader(self._gateways.find, error.owner)
        return gateway.url if gateway is not None else None

    def answer(self, scope: Scope, error: RunsElsewhere, url: str) -> Response:
        """Return a response that fetches the other gateway's answer when it is sent."""
        host, port = scope["server"]
        seen = f"{scope['scheme']} {host} {port} {scope.get(PREFIX, '/')} {int(NAMED_HOST in scope)}"
        secret = {name.encode() for name in key_headers(dialects_of(scope))}
        sent = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"] if name not in secret
        ]
        request = ForwardedRequest(
            method=scope["method"],
            target=_request_target(scope),
            headers=sent,
            body=b"".join(scope[RECORDED]),
            key_id=error.key_id,
            server=seen,
        )
        current_trace().key_id = None  # the other gateway has the call in its log
        log.info("forwarded", path=scope["path"], owner=error.owner)
        return _ForwardedResponse(self, request, error.owner, url)

    async def send(self, request: ForwardedRequest, owner: str, url: str, send: Send) -> None:
        """Send the answer on as it comes. Raises GatewayGone, also in the middle of it."""
        relay = asyncio.create_task(self._relay(request, url, send))
        gone = asyncio.create_task(self._watch(owner))
        try:
            await asyncio.wait({relay, gone}, return_when=asyncio.FIRST_COMPLETED)
            await (relay if relay.done() else gone)
        except GatewayGone as error:
            log.warning("another server does not answer", owner=owner, url=url, reason=str(error))
            raise
        finally:
            relay.cancel()
            gone.cancel()
            await asyncio.wait({relay, gone})

    async def _relay(self, request: ForwardedRequest, url: str, send: Send) -> None:
        async with self._link.send(url, request, self._clock.now()) as answer:
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for chunk in answer.response.aiter_raw():  # in the encoding in which it was sent
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, owner: str) -> None:
        """Raise GatewayGone once a gateway is given up: a machine that goes away silently closes no connection. A
        database that is away says nothing of it."""
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            with suppress(DatabaseBusy):
                if await self._gateways.in_reader(self._gateways.find, owner) is None:
                    raise GatewayGone("it was given up")


class _ForwardedResponse(Response):
    def __init__(self, forwarder: Forwarder, request: ForwardedRequest, owner: str, url: str) -> None:
        super().__init__()
        self._forwarder = forwarder
        self._request = request
        self._owner = owner
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer until its end, or until its client leaves, or the other gateway is given up."""
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        sending = self._forwarder.send(self._request, self._owner, self._url, note)
        try:
            await cancel_on_disconnect(receive, sending)
        except GatewayGone:
            if begun:  # all that is left is to cut the answer off
                raise
            await send_error(Overloaded(GONE, 2), scope, receive, send)


class GatewayListener:
    """The private listener: serves requests that other gateways of this cluster send, as if its clients had sent them
    here."""

    def __init__(self, app: ASGIApp, secret: bytes, clock: Clock) -> None:
        self._app = app
        self._secret = secret
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of another gateway. A request without the cluster's signature is refused before its body is
        read."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            verify(self._secret, scope["method"], _request_target(scope), headers, self._clock.now())
            body = await Request(scope, receive).body()
            verify_body(headers, body)
        except ClientDisconnect:
            return
        except BadSignature as error:
            log.warning("refused a request on the private listener", reason=str(error), client=scope.get("client"))
            await send_error(Forbidden("Only this cluster's servers may send requests here."), scope, receive, send)
            return
        address = f"{headers['x-darkroom-server']} / 0".split(" ")  # a gateway of an older version sends three of them
        scheme, host, port, prefix, is_named = address[:5]
        scope.update({FORWARDED: headers["x-darkroom-key"], "scheme": scheme, "server": (host, int(port))})
        scope.update({PREFIX: prefix.rstrip("/"), **({NAMED_HOST: True} if is_named == "1" else {})})
        await self._app(scope, _replay(body, receive), send)


@asynccontextmanager
async def listen(app: ASGIApp, url: str, secret: bytes, clock: Clock) -> AsyncIterator[None]:
    """Take the other gateways' requests at this URL while this is entered. Raises StartError."""
    server = _PrivateServer(
        uvicorn.Config(
            GatewayListener(app, secret, clock),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
    )
    bound = _bind_socket(url)
    task = asyncio.create_task(server.serve(sockets=[bound]), name="private listener")
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({task})


class _PrivateServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the public server."""
        yield


def _bind_socket(url: str) -> socket.socket:
    parts = urlsplit(url)
    port = parts.port or 80
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            parts.hostname, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise StartError(f"DARKROOM_GATEWAY_URL is {url}, but this machine can't listen there: {error}.") from error
    bound.setblocking(False)
    return bound


def _request_target(scope: Scope) -> str:
    """Return the path of a request with its query, as they were sent."""
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    return f"{scope['raw_path'].decode('latin-1')}{query}"


def _replay(body: bytes, receive: Receive) -> Receive:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
