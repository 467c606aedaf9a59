"""An error as an HTTP answer, in the shape of the protocol whose URL was called."""

import json
import re
from typing import Any

from starlette.types import Scope, Send

from server.dialects.anthropic import errors as anthropic
from server.dialects.gemini import errors as gemini
from server.errors import ApiError, ModerationBlocked

ERROR_CODE = "darkroom.error_code"  # in the scope of a request that was answered with an error
GOOGLE = re.compile(r"/v1beta/|/v1/models/.*:(\w+Contents?|countTokens|generateAnswer|predict(LongRunning)?)$")
ANTHROPIC = re.compile(r"/v1/messages(/|$)")


def error_body(path: str, error: ApiError) -> dict[str, Any]:
    """The body for a call of this path. All others than these protocols' are OpenAI's."""
    if ANTHROPIC.match(path):
        return anthropic.error_body(error)
    return gemini.error_body(error) if GOOGLE.match(path) else error.body()


def error_answer(path: str, error: ApiError) -> tuple[int, dict[str, Any]]:
    """Status and body. What the policy refuses is no error in Google's protocol, but an answer without candidates."""
    if GOOGLE.match(path) and isinstance(error, ModerationBlocked):
        return 200, gemini.blocked_body(error)
    return error.status, error_body(path, error)


def note_error(scope: Scope, error: ApiError) -> None:
    """Leave the error's code for the log and the metrics."""
    scope[ERROR_CODE] = error.label


async def send_error(error: ApiError, scope: Scope, send: Send) -> None:
    """Send an error as an ASGI response, without the web framework."""
    note_error(scope, error)
    body = json.dumps(error_body(scope["path"], error)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    start = {
        "type": "http.response.start",
        "status": error.status,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
