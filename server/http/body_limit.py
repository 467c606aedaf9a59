"""A limit on the size of request bodies, whether they declare their length or not."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import TooLarge
from server.http.observability import send_error


class BodyLimitMiddleware:
    """ASGI middleware: 413 as soon as a body is known to be too long. `below` has other limits by path prefix."""

    def __init__(self, app: ASGIApp, max_bytes: int, below: Mapping[str, int]) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.below = below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse by Content-Length before reading, and by count while reading."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limits = (limit for prefix, limit in self.below.items() if scope["path"].startswith(prefix))
        limit = next(limits, self.max_bytes)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            await send_error(_too_large(limit), send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    raise _too_large(limit)
            return message

        await self.app(scope, receive_counted, send)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than {limit // 1024**2} MiB. Send fewer or smaller images.")
