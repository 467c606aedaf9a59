"""A bound on request bodies, declared or not."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import TooLarge
from server.observe import send_error


class BodyLimit:
    """ASGI middleware: 413 as soon as a body is known to be too long."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse by Content-Length before reading, and by count while reading."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_bytes:
            await send_error(self._refusal(), send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self.max_bytes:
                    raise self._refusal()
            return message

        await self.app(scope, counted, send)

    def _refusal(self) -> TooLarge:
        limit = self.max_bytes // 1024**2
        return TooLarge(f"The request body is larger than {limit} MiB. Send fewer or smaller reference images.")
