"""Errors of image servers as the last event of a job: whose fault it is, and the remedy. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pipelines.protocol.images import Failed, FailureCode
from server.backends.image_upstream.requests import OUR_FIELDS, OUR_NAMES

RETRY_S = 5.0
MAX_MESSAGE = 500  # characters of another server's message that callers see
CALLERS_FAULT = {400, 413, 422}
BUSY = {408, 409, 425, 503}
STATUS_OF_TYPE = {"invalid_request_error": 400, "image_generation_user_error": 400, "requests": 429}
STATUS_OF_CODE = {
    "timeout": 504, "server_overloaded": 503, "server_stopping": 503, "upstream_busy": 503, "storage_failed": 503,
}  # fmt: skip
Json = Mapping[str, Any]


class UpstreamError(Exception):
    """An upstream drew nothing, for all that is known.

    `cut`: it may have begun, and the same request finds the images that it drew. `away`: it has not begun, being down
    or starting.
    """

    def __init__(self, failed: Failed, *, cut: bool = False, away: bool = False) -> None:
        super().__init__(failed.message)
        self.failed = failed
        self.cut = cut
        self.away = away


def failure(model: str, status: int, headers: Mapping[str, str], body: Json) -> Failed:
    """Translate a status and an error body into the failure that the caller is told."""
    error = _error_of(body)
    text = str(error.get("message") or f"status {status}")[:MAX_MESSAGE]
    who, detail = f"The server behind model `{model}`", f"status {status}: {json.dumps(body)[:2000]}"
    code, param = error.get("code"), _our_field(error)
    if code == "cancelled":
        return Failed("upstream_failed", f"{who} has cancelled the call; nothing was charged.", detail)
    if code == "insufficient_quota":
        return Failed("upstream_refused", f"{who} has no budget left for this server; its operator can fix it.", detail)
    if status in {401, 402, 403}:  # it refuses this server's key, not the caller's
        return Failed("upstream_refused", f"{who} refuses this server's key; its operator can fix it.", detail)
    if status == 429:
        return Failed(
            "upstream_limited", f"{who} takes no more calls now: {text}", detail, retry_after_s=_retry_s(headers)
        )
    if status in CALLERS_FAULT and param != "model":
        rejected: FailureCode = "moderation_blocked" if code == "moderation_blocked" else "upstream_rejected"
        return Failed(rejected, f"{who} refused the request: {text}", detail, param)
    if code == "invalid_picture":
        return Failed("invalid_picture", f"{who} drew no image: {text}", detail, param)
    if status in BUSY:
        return Failed("upstream_busy", f"{who} is busy: {text}", detail, retry_after_s=_retry_s(headers))
    if status == 504:
        return Failed("timed_out", f"{who} took too long: {text}", detail)
    return Failed("upstream_failed", f"{who} failed with status {status}; nothing was charged.", detail)


def failure_in_stream(model: str, body: Json) -> Failed:
    """Translate an error that came as an event, and so without its status, as `failure` does."""
    error = _error_of(body)
    kind, code = str(error.get("type")), str(error.get("code"))
    return failure(model, STATUS_OF_CODE.get(code) or STATUS_OF_TYPE.get(kind, 500), {}, body)


def _error_of(body: Json) -> Json:
    """Return OpenAI's error object, or FastAPI's detail as one."""
    error = body.get("error", body.get("detail", body))
    if isinstance(error, list) and error and isinstance(error[0], Mapping):
        location = error[0].get("loc")
        param = str(location[-1]) if isinstance(location, list) and location else None
        return {"message": error[0].get("msg"), "param": param}
    return error if isinstance(error, Mapping) else {"message": str(error)}


def _our_field(error: Json) -> str | None:
    """Return the field of ours that the error is about; "model" for the name of the model there, which is not the
    caller's."""
    param = error.get("param")
    if not isinstance(param, str):
        return None
    name = OUR_NAMES.get(param, param.partition("[")[0])
    return name if name in OUR_FIELDS or name == "model" else None


def _retry_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of Retry-After; servers that send a date get our own guess."""
    try:
        return float(int(headers.get("retry-after", RETRY_S)))
    except ValueError:
        return RETRY_S
