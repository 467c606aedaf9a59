"""Limits of request bodies: their size, their share of memory, and the time that they may take to come."""

import asyncio
import zlib

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import BadRequest, RequestTimedOut, TooLarge, UnsupportedMedia
from server.flows.references import MAX_FILE_BYTES
from server.http.errors import send_error
from server.schemas.images import MAX_REFERENCES
from server.state.body_budget import FREE_BYTES, BodyBudget, BodyLease

MIB = 1024**2
FORM_PATH = "/v1/images/edits"
MAX_FORM_BYTES = (MAX_REFERENCES + 1) * MAX_FILE_BYTES + 8 * MIB  # the references, a mask, and the other fields
DECODED = ("gzip", "deflate")  # values of Content-Encoding
ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS  # found by the header
PIECE_BYTES = 64 * 1024  # of a message: much less than a bomb grows to, and quick on the event loop


class DecodedBody:
    """One body. Its messages are those of a body that was not compressed."""

    def __init__(self, receive: Receive, lease: BodyLease, limit: int) -> None:
        self._receive = receive
        self._lease = lease
        self._limit = limit
        self._decoder = zlib.decompressobj(ZLIB_OR_GZIP)
        self._compressed = b""
        self._more = True  # of the compressed body
        self._decoded_bytes = 0

    async def receive(self) -> Message:
        """Return the next message, decompressed. Raises TooLarge, BadRequest, and the errors of reading and of the
        lease."""
        if not self._more and not self._compressed:
            return await self._receive()
        if not self._compressed:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._compressed, self._more = message.get("body", b""), message.get("more_body", False)
        piece = self._decompress()
        self._decoded_bytes += len(piece)
        limit = self._limit if self._lease.begun else FREE_BYTES
        if self._decoded_bytes > limit:
            raise too_large(limit)
        await self._lease.extend(self._decoded_bytes)
        more = self._more or bool(self._compressed)
        if not more and not self._decoder.eof:
            raise BadRequest("The body of your request could not be decompressed: it ends too early.")
        return {"type": "http.request", "body": piece, "more_body": more}

    def _decompress(self) -> bytes:
        try:
            piece = self._decoder.decompress(self._compressed, PIECE_BYTES)
        except zlib.error as error:
            raise BadRequest(f"The body of your request could not be decompressed: {error}.") from error
        self._compressed = self._decoder.unconsumed_tail
        if self._decoder.eof and (self._compressed or self._decoder.unused_data):
            raise BadRequest("The body of your request could not be decompressed: something follows its end.")
        return piece


def too_large(limit: int) -> TooLarge:
    """Return the error of a body of more than `limit` bytes."""
    if limit < MIB:
        return TooLarge(f"The request body is larger than {limit // 1024} KiB.")
    where = "" if limit == MAX_FORM_BYTES else f", or send them as files to {FORM_PATH}, which takes more"
    return TooLarge(f"The request body is larger than {limit // MIB} MiB. Send fewer or smaller images{where}.")


LEASE = "darkroom.body_lease"  # in the ASGI scope
# No route reads their bodies, and a stream that waits for its client to leave must not end by an error in one.
BODILESS = {"GET", "HEAD"}
# A proxy may go by the other one, and take what follows for a request of another client (RFC 9112, 6.3).
AMBIGUOUS = BadRequest(
    "A request can't have both Content-Length and Transfer-Encoding.", code=None, headers={"Connection": "close"}
)


class BodyLimitMiddleware:
    """ASGI middleware: 413 as soon as a body is known to be too long, 408 if it stops coming.

    A body is read only after its route has called `BodyLease.begin`, for which it must know the key. The bytes that it
    reserves are held until the request has been answered, and until every other holder has let go.
    """

    def __init__(self, app: ASGIApp, budget: BodyBudget, max_json_bytes: int, timeout_s: float) -> None:
        self.app = app
        self.budget = budget
        self.max_json_bytes = max_json_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse by Content-Length before reading, and by count while reading."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        headers = dict(scope["headers"])
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            await send_error(AMBIGUOUS, scope, receive, send)
            return
        declared = headers.get(b"content-length", b"0")
        declared_bytes = int(declared[:20]) if declared.isdigit() else 0
        if declared_bytes > limit:
            await send_error(too_large(limit), scope, receive, send)
            return
        lease = scope[LEASE] = BodyLease(self.budget, declared_bytes)
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding not in {*DECODED, "identity", ""}:
            await send_error(_unsupported_encoding(encoding), scope, receive, send)
            return
        if scope["method"] not in BODILESS:
            body = _Body(receive, lease, limit, self.timeout_s)
            receive = DecodedBody(body.receive, lease, limit).receive if encoding in DECODED else body.receive
        try:
            await self.app(scope, receive, send)
        finally:
            lease.release()

    def _limit(self, path: str) -> int:
        if path.startswith("/admin/"):
            return FREE_BYTES
        return MAX_FORM_BYTES if path == FORM_PATH else self.max_json_bytes


class _Body:
    """One body while it is read."""

    def __init__(self, receive: Receive, lease: BodyLease, limit: int, timeout_s: float) -> None:
        self._receive = receive
        self._lease = lease
        self._limit = limit
        self._timeout_s = timeout_s
        self._received = 0
        self._complete = False
        self._counted = 0  # bytes that had come when the time was last extended
        self._late_at: float | None = None

    async def receive(self) -> Message:
        """Return the next message. Raises TooLarge, RequestTimedOut, RateLimited and Overloaded, while the body
        comes."""
        if self._complete:
            return await self._receive()
        message = await self._receive_in_time()
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        limit = self._limit if self._lease.begun else FREE_BYTES
        if self._received > limit:
            raise too_large(limit)
        await self._lease.extend(self._received)
        return message

    async def _receive_in_time(self) -> Message:
        """Return the next message within its time: a slow body gets more with every 64 KiB. Raises RequestTimedOut."""
        now = asyncio.get_running_loop().time()
        if self._late_at is None or self._received - self._counted >= FREE_BYTES:
            self._counted, self._late_at = self._received, now + self._timeout_s
        try:
            async with asyncio.timeout_at(self._late_at):
                return await self._receive()
        except TimeoutError:
            raise RequestTimedOut(
                f"The body of your request did not come in time: at least {FREE_BYTES // 1024} KiB are expected every "
                f"{self._timeout_s:g} s."
            ) from None


def body_lease(request: Request) -> BodyLease:
    """Return the request's share of the budget for bodies."""
    lease: BodyLease = request.scope[LEASE]
    return lease


def _unsupported_encoding(encoding: str) -> UnsupportedMedia:
    return UnsupportedMedia(
        f"Bodies with the Content-Encoding '{encoding[:40]}' are not read here: send it as {' or '.join(DECODED)}, "
        "or as it is.",
        headers={"Accept-Encoding": ", ".join(DECODED)},
    )
