"""Errors as Anthropic's clients know them: by its types and statuses, and its own sentence before ours."""

from typing import Literal

from typing_extensions import TypedDict

from server.errors import ApiError, ContextExceeded, ModelNotFound

TYPES = {  # by status; those of the same hundred that are not here are the last two
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
SENTENCES = {  # by our code
    "invalid_api_key": "invalid x-api-key",
    "insufficient_quota": "Your credit balance is too low",
    "request_too_large": "Request exceeds the maximum size",
    "server_overloaded": "Overloaded",
}


class MessageErrorDetail(TypedDict, total=False):
    """`type` and `message` are always there. `param` names the field, `code` is made for programs."""

    type: str
    message: str
    param: str
    code: str


class MessageError(TypedDict):
    """The body of every error, and the event that ends a stream early."""

    type: Literal["error"]
    error: MessageErrorDetail


def error_answer(error: ApiError) -> tuple[int, MessageError]:
    """Return the status and the body of an answer."""
    status = 402 if error.code == "insufficient_quota" else 529 if error.status == 503 else error.status
    kind = TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    details: MessageErrorDetail = {"type": kind, "message": _message(error)}
    if error.param is not None:
        details["param"] = error.param
    if error.code is not None:
        details["code"] = error.code
    return status, {"type": "error", "error": details}


def error_body(error: ApiError) -> MessageError:
    """Return the body of an answer, or of the event `error` of a stream. `param` and `code` are our additions."""
    return error_answer(error)[1]


def _message(error: ApiError) -> str:
    theirs = _sentence(error)
    return f"{theirs}. {error.message}" if theirs and not error.message.startswith(theirs) else error.message


def _sentence(error: ApiError) -> str | None:
    """Return the sentence by which clients of this protocol know the error; None if they need none."""
    if isinstance(error, ContextExceeded):
        counted = error.tokens is not None and error.context is not None
        return "prompt is too long" + (f": {error.tokens} tokens > {error.context} maximum" if counted else "")
    if isinstance(error, ModelNotFound):
        return f"model: {error.model}"
    if error.status == 401 and error.code is None:
        return "x-api-key header is required"
    return SENTENCES.get(error.code or "")
