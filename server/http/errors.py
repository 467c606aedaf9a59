"""An error as an HTTP answer, in the shape of the protocol whose URL was called."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.http.dialect import find_dialect
from server.telemetry.call_trace import current_trace

ERROR_CODE = "darkroom.error_code"  # in the scope of a request that was answered with an error


def error_answer(scope: Scope, error: ApiError) -> tuple[int, Mapping[str, Any]]:
    """Return the status and the body of the answer to this request."""
    dialect = find_dialect(scope, scope["path"])
    return dialect.error_answer(error) if dialect else (error.status, error.body())


def record_error(scope: Scope, error: ApiError) -> None:
    """Record the error in the request's scope: its code for the metrics, the error itself for the log of calls."""
    scope[ERROR_CODE] = error.label
    trace = current_trace()
    if trace.code is None:
        trace.fail(error.label, error.message, error.param)


async def send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error as an ASGI response, around the app's own handlers of errors."""
    record_error(scope, error)
    status, body = error_answer(scope, error)
    answer = Response(json.dumps(body), status, error.headers, "application/json")
    await answer(scope, receive, send)
