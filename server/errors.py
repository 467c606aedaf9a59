"""Every error that a client can get: one exception class each. `server.http.errors` makes HTTP answers of them.

ApiError
├── Unauthorized 401      ├── UnsupportedMedia 415
├── Forbidden 403         ├── QuotaExceeded 429
├── NotFound 404          ├── EngineFailure 500; InvalidImage, ImageMissing
├── MethodNotAllowed 405  ├── Overloaded 503; ServerStopping, DatabaseBusy and -Failed, StorageFailed
├── Conflict, Cancelled 409  ├── TimedOut 504
├── TooLarge 413          ├── KeyReused 422
├── RequestTimedOut 408   ├── RateLimited 429
├── BadRequest 400        ├── UpstreamRefused: another server's own status
                         └── ReplayedError: any of these, from an earlier call
"""

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Literal, NotRequired, cast

from typing_extensions import TypedDict

LABEL = re.compile(r"[a-z][a-z0-9_]{0,59}")
STATUS_NAMES = {status.value: status.name.lower() for status in HTTPStatus}


def retry_after_header(retry_after_s: float) -> str:
    """Return the value of a Retry-After header, in whole seconds. SDKs give up above 120 s, so that is the maximum."""
    return str(max(1, min(120, math.ceil(retry_after_s))))


def status_label(status: int) -> str:
    """Return the name of an HTTP status in snake case, such as `not_found`."""
    return STATUS_NAMES.get(status, "error")


class ModerationDetails(TypedDict):
    """Why the moderation policy refused a request."""

    moderation_stage: Literal["input", "output"]
    categories: list[str]


class ErrorDetail(TypedDict):
    """`param` names the field that caused the error, `code` is stable and made for programs."""

    message: str
    type: str
    param: str | None
    code: str | None
    moderation_details: NotRequired[ModerationDetails]


class ErrorBody(TypedDict):
    """The body of every error."""

    error: ErrorDetail


class StartError(Exception):
    """A command or the server can't run. The message is for the operator."""


class ApiError(Exception):
    """An error in OpenAI's format: message, type, param and code are always present."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "invalid_request_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.headers = headers or {}

    @property
    def label(self) -> str:
        """Return the error's name in metrics, logs and the database: the code, or the status's name where the body has
        no code, or one that an upstream chose in another style."""
        code = str(self.code)
        return code if LABEL.fullmatch(code) else status_label(self.status)

    @property
    def triggers_sdk_retry(self) -> bool:
        """Return whether OpenAI's SDKs retry after this answer."""
        return (self.status in {408, 409, 429} or self.status >= 500) and self.headers.get("x-should-retry") != "false"

    def body(self) -> ErrorBody:
        """Return the error as the body of an answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(ApiError):
    """An invalid value; `param` names the field."""

    status: ClassVar[int] = 400
    default_code: ClassVar[str | None] = "invalid_value"


class BadImageRequest(BadRequest):
    """As BadRequest, with the type that OpenAI uses for errors in sizes and images."""

    type: ClassVar[str] = "image_generation_user_error"


class PromptTooLong(BadRequest):
    """A prompt that is to be read whole or refused. `read_part` of it would be read."""

    default_code: ClassVar[str | None] = "prompt_too_long"

    def __init__(self, message: str, param: str | None, read_part: float) -> None:
        super().__init__(message, param=param)
        self.read_part = read_part


class ContextExceeded(BadRequest):
    """A conversation that is longer than its model's context. `tokens` are its own, `context` those that fit; each is
    None if it is not known. Clients that know this error shorten the conversation and send it again."""

    default_code: ClassVar[str | None] = "context_length_exceeded"

    def __init__(
        self, message: str, *, tokens: int | None = None, context: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, param=param or "messages")
        fits = tokens is not None and context is not None and tokens <= context  # beside no answer
        self.tokens, self.context = (None, context) if fits else (tokens, context)


class ModerationBlocked(BadRequest):
    """The moderation policy refuses the request or its result."""

    default_code: ClassVar[str | None] = "moderation_blocked"

    def __init__(self, message: str, stage: Literal["input", "output"], categories: list[str]) -> None:
        super().__init__(message)
        self.details: ModerationDetails = {"moderation_stage": stage, "categories": categories}

    def body(self) -> ErrorBody:
        """Return the error as the body of an answer, with the details of the moderation."""
        return {"error": {**super().body()["error"], "moderation_details": self.details}}


class ImageModerationBlocked(ModerationBlocked):
    """As ModerationBlocked, with the type that OpenAI uses for images."""

    type: ClassVar[str] = "image_generation_user_error"


class Unauthorized(ApiError):
    """No API key, or an invalid one."""

    status: ClassVar[int] = 401


class Forbidden(ApiError):
    """A valid key without the model's group."""

    status: ClassVar[int] = 403
    default_code: ClassVar[str | None] = "group_mismatch"


class NotFound(ApiError):
    """No such model, route or result."""

    status: ClassVar[int] = 404


class ModelNotFound(NotFound):
    """A model that is not served."""

    default_code: ClassVar[str | None] = "model_not_found"

    def __init__(self, model: str | None, message: str) -> None:
        super().__init__(message, param="model")
        self.model = model


class MethodNotAllowed(ApiError):
    """The route exists, but not with this method."""

    status: ClassVar[int] = 405
    default_code: ClassVar[str | None] = "method_not_allowed"


class RequestTimedOut(ApiError):
    """The request did not come in time. The rest of it is not waited for."""

    status: ClassVar[int] = 408
    default_code: ClassVar[str | None] = "request_timeout"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"Connection": "close"})


class Conflict(ApiError):
    """Another call must end first. SDKs retry after Retry-After."""

    status: ClassVar[int] = 409
    default_code: ClassVar[str | None] = "conflict"

    def __init__(self, message: str, retry_after_s: int, *, code: str | None = None) -> None:
        super().__init__(message, code=code, headers={"Retry-After": str(retry_after_s)})


class RunsElsewhere(Conflict):
    """The call that the request is about runs on another server of the same database. Where servers forward to each
    other, its client gets that server's answer in place of this error."""

    def __init__(self, message: str, *, owner: str, key_id: str, code: str | None = None) -> None:
        super().__init__(message, 2, code=code)
        self.owner = owner
        self.key_id = key_id


class Cancelled(ApiError):
    """The call was cancelled by its own key or an operator. A retry would undo that: a header tells SDKs not to."""

    status: ClassVar[int] = 409
    default_code: ClassVar[str | None] = "cancelled"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code, headers={"x-should-retry": "false"})


class KeyReused(ApiError):
    """An Idempotency-Key that was used with other parameters."""

    status: ClassVar[int] = 422
    default_code: ClassVar[str | None] = "idempotency_key_reused"


class TooLarge(ApiError):
    """The body or one of its files is too large."""

    status: ClassVar[int] = 413
    default_code: ClassVar[str | None] = "request_too_large"


class UnsupportedMedia(ApiError):
    """The route does not accept the body's content type."""

    status: ClassVar[int] = 415
    default_code: ClassVar[str | None] = "unsupported_media_type"


class QuotaExceeded(ApiError):
    """The key's budget does not cover the price. A retry can't help, so a header tells SDKs not to."""

    status: ClassVar[int] = 429
    type: ClassVar[str] = "insufficient_quota"
    default_code: ClassVar[str | None] = "insufficient_quota"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"x-should-retry": "false"})


class RateLimited(ApiError):
    """The key has reached its limit of running calls, of calls begun in a minute, or of work in the queue."""

    status: ClassVar[int] = 429
    type: ClassVar[str] = "requests"
    default_code: ClassVar[str | None] = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: float, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, headers={**(headers or {}), "Retry-After": retry_after_header(retry_after_s)})


class ServerError(ApiError):
    """An error that the caller did not cause."""

    type: ClassVar[str] = "server_error"


class EngineFailure(ServerError):
    """The engine could not finish the job; nothing was charged."""

    status: ClassVar[int] = 500
    default_code: ClassVar[str | None] = "engine_failure"


class InvalidImage(EngineFailure):
    """The drawn image has values that are not finite; nothing was charged. The same call would draw the same again, so
    a header tells SDKs not to send it."""

    default_code: ClassVar[str | None] = "invalid_picture"

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message, param=param, headers={"x-should-retry": "false"})


class Overloaded(ServerError):
    """The queue is full, or the server can't take the job now."""

    status: ClassVar[int] = 503
    default_code: ClassVar[str | None] = "server_overloaded"

    def __init__(self, message: str, retry_after_s: float, *, code: str | None = None) -> None:
        super().__init__(message, code=code, headers={"Retry-After": retry_after_header(retry_after_s)})


class ServerStopping(Overloaded):
    """The server is about to stop, or stopped what ran: another one, or the next start, takes the call."""

    default_code: ClassVar[str | None] = "server_stopping"


class DatabaseBusy(Overloaded):
    """The database is locked, or can't be reached. `reason` is for the operator.

    `began`: its transaction had begun, and was cut off. If the connection broke at its end, it may be committed, unless
    it is `undone`: nothing was written.
    """

    default_code: ClassVar[str | None] = "database_busy"
    text: ClassVar[str] = "The server's database is busy or out of reach. Please send the request again."

    def __init__(self, reason: str, *, began: bool, undone: bool) -> None:
        super().__init__(self.text, 5)
        self.reason = reason
        self.began = began
        self.undone = undone


class DatabaseFailed(DatabaseBusy):
    """The disk of the database is full or read-only, or its file is damaged."""

    default_code: ClassVar[str | None] = "database_failed"
    text: ClassVar[str] = "The server's database can't be used: its disk is full, read-only or damaged. Try later."


class StorageFailed(Overloaded):
    """A file can't be written or read: the disk is full, read-only or damaged, or the object store is away. `reason` is
    for the operator."""

    default_code: ClassVar[str | None] = "storage_failed"

    def __init__(self, reason: str) -> None:
        super().__init__("The server's storage is full, damaged or away; nothing was charged. Please try later.", 30)
        self.reason = reason


class ImageMissing(EngineFailure):
    """A file that is recorded and was never deleted is not in the storage: it was lost, or the storage is another
    one."""

    default_code: ClassVar[str | None] = "picture_missing"

    def __init__(self, name: str) -> None:
        super().__init__(f"The image '{name}' is missing from the server's storage, though it was not deleted.")


class TimedOut(ServerError):
    """The job ran past its time limit; nothing was charged."""

    status: ClassVar[int] = 504
    default_code: ClassVar[str | None] = "timeout"


class UpstreamRefused(ApiError):
    """What another server answered in place of a chat: its status and its words, and when it may be asked again."""

    def __init__(self, status: int, error: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(
            str(error.get("message")), param=error.get("param"), code=error.get("code"), headers=dict(headers)
        )
        self.status = status  # type: ignore[misc]  # the other server's, not the class's
        self.type = str(error.get("type"))  # type: ignore[misc]


class ReplayedError(ApiError):
    """The error of an earlier call, repeated unchanged for a retry."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message")), param=error.get("param"), code=error.get("code"))
        self.status = status  # type: ignore[misc]  # the status is stored, the class is not
        self._error = cast("ErrorDetail", dict(error))

    def body(self) -> ErrorBody:
        """Return the earlier call's error as the body of an answer."""
        return {"error": self._error}
