"""Errors as Google's SDKs read them: google.rpc.Status as JSON."""

from typing import Any

from server.errors import ApiError, ImageModerationBlocked, ModerationBlocked

STATUSES = {  # HTTP status -> google.rpc.Code, by https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return a google.rpc.Status. Its details are this server's code and the name of the field, as ErrorInfo."""
    status = STATUSES.get(error.status) or ("INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": (error.code or status).upper(),
        "domain": "darkroom",
        "metadata": {"field": error.param} if error.param else {},
    }
    return {"error": {"code": error.status, "message": error.message, "status": status, "details": [info]}}


def error_answer(error: ApiError) -> tuple[int, dict[str, Any]]:
    """Return status and body. A refusal of the policy is an answer of this protocol, not an error."""
    if isinstance(error, ModerationBlocked):
        return 200, blocked_body(error)
    return error.status, error_body(error)


def blocked_body(error: ModerationBlocked) -> dict[str, Any]:
    """Return the answer that says that the policy refuses the prompt, or its result."""
    images = isinstance(error, ImageModerationBlocked)
    reason = "IMAGE_SAFETY" if images else "SAFETY"
    if error.details["moderation_stage"] == "input":
        return {"promptFeedback": {"blockReason": reason, "blockReasonMessage": error.message}}
    return {"candidates": [{"index": 0, "finishReason": reason, "finishMessage": error.message}]}
