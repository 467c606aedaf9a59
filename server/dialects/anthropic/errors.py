"""Errors as Anthropic's SDKs read them."""

from typing import Any

from server.errors import ApiError

TYPES = {  # by status; those of the same hundred that are not here are the last two
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an answer, or of the event `error` of a stream. `param` and `code` are our additions."""
    kind = TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    details = {name: value for name, value in (("param", error.param), ("code", error.code)) if value is not None}
    return {"type": "error", "error": {"type": kind, "message": error.message, **details}}
