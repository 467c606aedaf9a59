"""The newline at the end of JSON answers, so that a terminal's prompt begins on a line of its own after curl."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON = "application/json"


class LastNewlineMiddleware:
    """ASGI middleware: ends each JSON body with a newline."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, and add the newline to what it answers if that is JSON."""
        is_json = False

        async def send_with_newline(message: Message) -> None:
            nonlocal is_json
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_json = headers.get("content-type", "").partition(";")[0] == JSON and message["status"] != 304
                if is_json and (length := headers.get("content-length")) is not None:
                    headers["content-length"] = str(int(length) + 1)
            elif is_json and message["type"] == "http.response.body" and not message.get("more_body", False):
                message = {**message, "body": message.get("body", b"") + b"\n"}
            await send(message)

        await self.app(scope, receive, send_with_newline)
