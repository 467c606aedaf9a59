"""Errors as Google's clients know them: a google.rpc.Status with Google's sentence before ours, or an answer without
candidates."""

from typing import Any

from typing_extensions import TypedDict

from server.dialects.gemini.answers import BlockReason, GenerateAnswer
from server.errors import ApiError, ContextExceeded, ImageModerationBlocked, ModelNotFound, ModerationBlocked

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
SENTENCES = {  # by our code
    "invalid_api_key": "API key not valid. Please pass a valid API key.",
    "insufficient_quota": "You exceeded your current quota, please check your plan and billing details (limit: 0).",
    "request_too_large": "Request payload size exceeds the limit.",
    "server_overloaded": "The model is overloaded. Please try again later.",
}
REASONS = {"invalid_api_key": "API_KEY_INVALID"}  # ours -> Google's; the others are ours in capitals


class RpcStatus(TypedDict):
    """google.rpc.Status."""

    code: int
    message: str
    status: str
    details: list[dict[str, Any]]


class GeminiError(TypedDict):
    """The body of every error."""

    error: RpcStatus


def error_answer(error: ApiError) -> tuple[int, GeminiError | GenerateAnswer]:
    """Return status and body. A refusal of the policy is an answer of this protocol, not an error."""
    if isinstance(error, ModerationBlocked):
        return 200, blocked_body(error)
    return error.status, error_body(error)


def error_body(error: ApiError) -> GeminiError:
    """Return a google.rpc.Status. Its details are this server's code and the name of the field, as ErrorInfo, and when
    to come back."""
    status = STATUSES.get(error.status) or ("INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
    details: list[dict[str, Any]] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": REASONS.get(error.code or "") or (error.code or status).upper(),
            "domain": "darkroom",
            "metadata": {"field": error.param} if error.param else {},
        }
    ]
    wait_s = next((value for name, value in error.headers.items() if name.lower() == "retry-after"), "")
    if wait_s.isdecimal():  # another server may send a date
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{wait_s}s"})
    theirs = _sentence(error)
    message = f"{theirs} {error.message}" if theirs else error.message
    return {"error": {"code": error.status, "message": message, "status": status, "details": details}}


def _sentence(error: ApiError) -> str | None:
    """Return the sentence by which clients of this protocol know the error; None if they need none."""
    if isinstance(error, ContextExceeded):
        tokens = f" ({error.tokens})" if error.tokens is not None else ""
        context = f" ({error.context})" if error.context is not None else ""
        return f"The input token count{tokens} exceeds the maximum number of tokens allowed{context}."
    if isinstance(error, ModelNotFound):
        return f"models/{error.model} is not found for API version v1beta."
    return SENTENCES.get(error.code or "")


def blocked_body(error: ModerationBlocked) -> GenerateAnswer:
    """Return the answer that says that the policy refuses the prompt, or its result."""
    reason: BlockReason = "IMAGE_SAFETY" if isinstance(error, ImageModerationBlocked) else "SAFETY"
    if error.details["moderation_stage"] == "input":
        return {"promptFeedback": {"blockReason": reason, "blockReasonMessage": error.message}}
    return {"candidates": [{"index": 0, "finishReason": reason, "finishMessage": error.message}]}
