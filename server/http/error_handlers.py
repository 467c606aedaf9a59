"""Answers to errors that a route or the framework raises."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from server.errors import ApiError, BadRequest, MethodNotAllowed, NotFound, RunsElsewhere
from server.http.dialect import dialects_of, find_dialect
from server.http.errors import error_answer, record_error
from server.http.forwarding import Forwarder

MISPLACED = {"images", "chat", "responses", "conversations", "models"}  # first parts of URLs without /v1


def handle_errors(app: FastAPI, forwarder: Forwarder | None) -> None:
    """Let the app answer ApiErrors, and errors of the framework as such. ObservabilityMiddleware catches everything
    else. A request about a call on another server is answered by that one."""

    async def answer(request: Request, error: Exception) -> Response:
        if request.method == "OPTIONS" and isinstance(error, HTTPException) and error.status_code == 405:
            return Response(status_code=204, headers=dict(error.headers or {}))
        if isinstance(error, RunsElsewhere) and forwarder is not None:
            url = await forwarder.find_url(request.scope, error)
            if url is not None:
                return forwarder.answer(request.scope, error, url)
        api_error = error if isinstance(error, ApiError) else _translate(error, request.scope)
        record_error(request.scope, api_error)
        status, body = error_answer(request.scope, api_error)
        return JSONResponse(body, status_code=status, headers=api_error.headers)

    handler: Callable[[Request, Exception], Awaitable[Response]] = answer
    for kind in (ApiError, HTTPException, RequestValidationError, ClientDisconnect):
        app.add_exception_handler(kind, handler)


def _translate(error: Exception, scope: Scope) -> ApiError:
    """Return an error of the framework as the client gets it."""
    if isinstance(error, HTTPException) and error.status_code == 404:
        return NotFound(f"Unknown request URL. {_advice(scope)}", code="unknown_url")
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"This URL does not take that method. It takes: {allowed}.", headers={"Allow": allowed})
    if isinstance(error, HTTPException):
        return BadRequest(f"The request could not be read: {error.detail}")
    if isinstance(error, RequestValidationError):  # of a parameter of the URL: bodies are validated elsewhere
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return BadRequest(f"Invalid '{name}': {first['msg']}.", param=name)
    return BadRequest("The request could not be read: the client closed its connection.")


def _advice(scope: Scope) -> str:
    """Return advice about a URL that is not served: a client's base URL is the part that people get wrong."""
    path: str = scope["path"]
    first, _, rest = path.lstrip("/").partition("/")
    twice = first == "v1" and rest.startswith("v1")
    if not (first in MISPLACED or twice or find_dialect(scope, f"/v1{path}")):
        return "The routes are listed at /openapi.json."
    others = " and ".join(f"{dialect.vendor}'s" for dialect in dialects_of(scope))
    advice = "URLs begin with /v1 once: the base URL of OpenAI's clients ends in /v1"
    return f"{advice}, that of {others} does not." if others else f"{advice}."
