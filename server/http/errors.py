"""Errors as HTTP answers, in the shape of the protocol whose URL was called."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, NotFound
from server.http.dialect import find_client, find_dialect
from server.telemetry.call_trace import current_trace

ERROR_CODE = "darkroom.error_code"  # in the scope of a request that was answered with an error


UNSERVED = frozenset({"unknown_url", "unsupported_endpoint"})  # codes of URLs that no protocol has here
SHARED = re.compile(r"/v1/models(/|$)")  # URLs that more than one protocol has here


def error_answer(scope: Scope, error: ApiError) -> tuple[int, Mapping[str, Any]]:
    """Return the status and the body of the answer to this request: in the shape of the URL's protocol, or of the
    client's where the URL does not say which."""
    dialect = find_dialect(scope, scope["path"])
    if dialect is None and (error.code in UNSERVED or SHARED.match(scope["path"])):
        dialect = find_client(scope)
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


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def refuse(router: APIRouter, paths: Sequence[str], message: str, methods: Sequence[str] = METHODS) -> None:
    """Add routes that answer 404 with this message, so that no endpoint of the protocol looks like a mistyped URL."""

    async def answer() -> None:
        raise NotFound(message, code="unsupported_endpoint")

    for path in paths:
        router.add_api_route(path, answer, methods=[*methods], include_in_schema=False)


def refuse_endpoints(router: APIRouter, prefix: str, endpoints: dict[str, str], served: str) -> None:
    """Refuse endpoints below the prefix. `endpoints` has their names and the beginning of a sentence about them, such
    as "Batches are"; `served` is the sentence that names the endpoints that there are instead."""
    for name, what in endpoints.items():
        paths = (f"{prefix}/{name}", f"{prefix}/{name}/{{rest:path}}")
        refuse(router, paths, f"{what} not supported by this server. {served}")
