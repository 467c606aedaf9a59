"""Descriptions of routes in /openapi.json beyond their signatures, types and docstrings: the arguments `responses` and
`openapi_extra` of its decorator.

Routes that write their own answers, and those that read their own bodies, name a type here that FastAPI need not know.
It stands as "validation server.schemas.chat:ChatBody" until `openapi_document` replaces it by pydantic's schema.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from server.errors import (
    ApiError,
    BadRequest,
    Conflict,
    EngineFailure,
    ErrorBody,
    Forbidden,
    KeyReused,
    NotFound,
    Overloaded,
    RateLimited,
    RequestTimedOut,
    TimedOut,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)

Json = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]
JSON_TEXT = "x-json-text"  # the key of an example's text until the document is complete: FastAPI drops nulls

RESPONSE_HEADERS = {  # name -> schema type, description
    "x-request-id": ("string", "The id of this request. Every answer has one, and the server's log names it."),
    "Retry-After": ("integer", "Seconds after which to send the request again, at most 120."),
    "x-darkroom-job": ("string", "The id of this call, for GET /v1/images/jobs/{job_id}."),
    "x-darkroom-wake-s": (
        "integer",
        "Seconds that the models of this call take, by estimate, to come back to their device: they had been unloaded.",
    ),
    "x-darkroom-ignored": ("string", "Fields of the request that had no effect, separated by commas."),
    "x-darkroom-truncated": (
        "string",
        'What of the prompts no text encoder read, as `prompt: 14 of 89 tokens, from "..."`. A stream\'s last events, '
        "and answers that began before that was known, have it in `parameters` alone.",
    ),
    "Idempotency-Replayed": ("string", "`true` if this is the answer of an earlier request."),
    "Location": ("string", "Where the state of the call is."),
    "Preference-Applied": ("string", "`respond-async`."),
    "x-ratelimit-limit-requests": ("integer", "The key's calls a minute or, without that limit, at one time."),
    "x-ratelimit-remaining-requests": ("integer", "How many of these calls are left."),
    "x-ratelimit-reset-requests": ("string", "When all of them are free again, for example `1s` or `6m0s`."),
}
RATE_HEADERS = tuple(name for name in RESPONSE_HEADERS if name.startswith("x-ratelimit-"))
CREATE_HEADERS = (
    "x-darkroom-wake-s",
    "x-darkroom-ignored",
    "x-darkroom-truncated",
    "Idempotency-Replayed",
    *RATE_HEADERS,
)

ERRORS: dict[int, tuple[type[ApiError], str]] = {
    400: (BadRequest, "A value is invalid; `param` names it."),
    401: (Unauthorized, "The key is missing, unknown, expired or revoked."),
    403: (Forbidden, "The key has no access to the model's group."),
    404: (NotFound, "There is no such model, result or URL."),
    408: (RequestTimedOut, "The body did not come in time. Send it again."),
    409: (Conflict, "Something else has to end first. Try again."),
    413: (TooLarge, "The body or one of its files is too large."),
    415: (UnsupportedMedia, "The body has another content type than the route takes."),
    422: (KeyReused, "Another request had this Idempotency-Key."),
    429: (RateLimited, "The key's limit of calls is reached, or its budget is used up."),
    500: (EngineFailure, "The server failed. Nothing is charged."),
    503: (Overloaded, "The server has no room now, its database is busy, or it is about to stop."),
    504: (TimedOut, "The call took too long. Nothing is charged."),
}
RETRY_STATUSES = {409, 429, 503}
RUN_ERRORS = (400, 401, 403, 404, 408, 413, 429, 500, 503, 504)  # of the routes that run a model
CREATE_ERRORS = (*RUN_ERRORS, 409, 422)  # of those that take an Idempotency-Key too


def parameter(where: Literal["header", "path", "query"], name: str, description: str, **schema: Any) -> Json:
    """Describe a parameter. It replaces FastAPI's own description of a parameter with this name."""
    found = {"name": name, "in": where, "required": where == "path", "description": description}
    return {**found, "schema": schema or {"type": "string"}}


IDEMPOTENCY_KEY = parameter(
    "header",
    "Idempotency-Key",
    "Requests with the same key and the same body run once and are charged once; the later ones get the first answer.",
    type="string",
    minLength=1,
    maxLength=255,
)
KEEPALIVE = parameter(
    "header",
    "X-Keepalive",
    "`1` sends a space from time to time before a JSON answer, so that proxies do not close the connection; `0` sends "
    "none. The default is set for each key.",
)


PREFER = parameter(
    "header",
    "Prefer",
    "`respond-async` answers 202 with the job at once, as `background: true` does. Streams take no notice of it.",
)


def schema_of(type_: type, mode: Literal["validation", "serialization"]) -> Json:
    """Return a reference to the type's schema."""
    return {"$ref": f"{mode} {type_.__module__}:{type_.__qualname__}"}


def json_body(model: type, examples: Mapping[str, Any]) -> Json:
    """Describe a JSON body of this model. `examples` are by their names."""
    content = {"schema": schema_of(model, "validation"), "examples": _examples(examples)}
    return {"required": True, "content": {"application/json": content}}


def form_body(model: type, examples: Mapping[str, Any], encoding: Mapping[str, str]) -> Json:
    """Describe a body of this model as a form. `examples` are by their names; `encoding` has the content types of its
    parts, by their names."""
    content = json_body(model, examples)["content"]["application/json"]
    content["encoding"] = {name: {"contentType": types} for name, types in encoding.items()}
    return {"required": True, "content": {"multipart/form-data": content}}


def answer(description: str, type_: type | Json, media_type: str = "application/json") -> Json:
    """Describe a response with a body of this type, or of this schema."""
    schema = schema_of(type_, "serialization") if isinstance(type_, type) else type_
    return {"description": description, "content": {media_type: {"schema": schema}}}


def accepted_response(description: str, type_: type) -> Responses:
    """Return the answer to a client that comes back for the outcome of its request."""
    return {202: {**answer(description, type_), "headers": header_docs(["Location", "Preference-Applied"])}}


def event_stream_of(*types: type, examples: Mapping[str, Any]) -> Json:
    """Describe the content of a stream. OpenAPI 3.1 can't describe its lines: the schema is of the data of each
    event."""
    schema = {"anyOf": [schema_of(type_, "serialization") for type_ in types]}
    return {"text/event-stream": {"schema": schema, "examples": _examples(examples)}}


def errors(*statuses: int) -> Responses:
    """Return the errors with these statuses, for a decorator's `responses`. The document adds those that every route
    with a key, or with a JSON body, can answer."""
    return {
        status: {"$ref": f"#/components/responses/{ERRORS[status][0].__name__}", "description": ERRORS[status][1]}
        for status in statuses
    }


def errors_as(body: type, statuses: Sequence[int]) -> Responses:
    """Return the `responses` of a decorator for these errors, with the body of another protocol."""
    return {status: answer(ERRORS[status][1], body) for status in statuses}


def returns(
    type_: type | Json,
    *statuses: int,
    media_type: str = "application/json",
    stream: Json | None = None,
    headers: Sequence[str] = (),
) -> Responses:
    """Return the body of the success, as JSON or as a `stream`, and the errors with these statuses."""
    content = {**answer("", type_, media_type)["content"], **(stream or {})}
    return {200: {"content": content, "headers": header_docs(headers)}, **errors(*statuses)}


def shared_components() -> Json:
    """Return the errors and headers that the operations refer to."""
    return {
        "responses": {kind.__name__: _error_response(kind, description) for kind, description in ERRORS.values()},
        "headers": {
            name: {"description": description, "schema": {"type": kind}}
            for name, (kind, description) in RESPONSE_HEADERS.items()
        },
    }


def _error_response(kind: type[ApiError], description: str) -> Json:
    error = {"message": description, "type": kind.type, "param": None, "code": kind.default_code}
    response = answer(description, ErrorBody)
    response["content"]["application/json"]["examples"] = _examples({"error": {"error": error}})
    return {
        **response,
        "headers": header_docs(["x-request-id", *(["Retry-After"] if kind.status in RETRY_STATUSES else [])]),
    }


def header_docs(names: Sequence[str]) -> Json:
    """Return references to headers of an answer."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _examples(examples: Mapping[str, Any]) -> Json:
    return {name: {"value": {JSON_TEXT: json.dumps(value)}} for name, value in examples.items()}
