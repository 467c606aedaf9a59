"""Every answer that is not a success. One class per answer; `app` turns them into bodies in one place.

ApiError
├── Unauthorized 401      ├── UnsupportedMedia 415
├── Forbidden 403         ├── QuotaExceeded 429
├── NotFound 404          ├── EngineFailure 500
├── MethodNotAllowed 405  ├── Overloaded 503
├── Conflict 409          ├── TimedOut 504
├── TooLarge 413          ├── KeyReused 422
├── BadRequest 400        ├── RateLimited 429
                          └── KeptError: any of these, as an earlier call got it
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar


def whole_seconds(retry_after_s: float) -> str:
    """A Retry-After. SDKs give up above 120 s, so it stays below."""
    return str(max(1, min(120, math.ceil(retry_after_s))))


class StartError(Exception):
    """Why a command or the server can't start, for the operator."""


class ApiError(Exception):
    """An answer in OpenAI's error body: message, type, param and code are always present."""

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
    def asks_for_retry(self) -> bool:
        """Whether SDKs send the request once more after this."""
        return (self.status in {409, 429} or self.status >= 500) and self.headers.get("x-should-retry") != "false"

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(ApiError):
    """A value that can't work; `param` names the field."""

    status: ClassVar[int] = 400
    default_code: ClassVar[str | None] = "invalid_value"


class BadImageRequest(BadRequest):
    """As BadRequest, with the type that OpenAI gives to sizes and images."""

    type: ClassVar[str] = "image_generation_user_error"


class ModerationBlocked(BadRequest):
    """The policy refuses the request, or what came of it."""

    default_code: ClassVar[str | None] = "moderation_blocked"

    def __init__(self, message: str, stage: str, categories: list[str]) -> None:
        super().__init__(message)
        self.details = {"moderation_stage": stage, "categories": categories}

    def body(self) -> dict[str, Any]:
        """As every error's, with what OpenAI's clients read of a refusal."""
        return {"error": {**super().body()["error"], "moderation_details": self.details}}


class PictureBlocked(ModerationBlocked):
    """As ModerationBlocked, with the type that OpenAI gives to images."""

    type: ClassVar[str] = "image_generation_user_error"


class Unauthorized(ApiError):
    """No key, or one that opens nothing."""

    status: ClassVar[int] = 401


class Forbidden(ApiError):
    """A good key that lacks the model's group."""

    status: ClassVar[int] = 403
    default_code: ClassVar[str | None] = "group_mismatch"


class NotFound(ApiError):
    """No such model, route or result."""

    status: ClassVar[int] = 404


class MethodNotAllowed(ApiError):
    """The route exists, the method does not."""

    status: ClassVar[int] = 405
    default_code: ClassVar[str | None] = "method_not_allowed"


class Conflict(ApiError):
    """Something else must end first. SDKs try again after the pause."""

    status: ClassVar[int] = 409
    default_code: ClassVar[str | None] = "conflict"

    def __init__(self, message: str, retry_after_s: int, *, code: str | None = None) -> None:
        super().__init__(message, code=code, headers={"Retry-After": str(retry_after_s)})


class KeyReused(ApiError):
    """An Idempotency-Key that belongs to another request."""

    status: ClassVar[int] = 422
    default_code: ClassVar[str | None] = "idempotency_key_reused"


class TooLarge(ApiError):
    """The body or one of its files is too big."""

    status: ClassVar[int] = 413
    default_code: ClassVar[str | None] = "request_too_large"


class UnsupportedMedia(ApiError):
    """The body is of another content type than the route takes."""

    status: ClassVar[int] = 415
    default_code: ClassVar[str | None] = "unsupported_media_type"


class QuotaExceeded(ApiError):
    """The key's budget does not cover the price. Retrying does not help, and the SDKs are told so."""

    status: ClassVar[int] = 429
    type: ClassVar[str] = "insufficient_quota"
    default_code: ClassVar[str | None] = "insufficient_quota"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"x-should-retry": "false"})


class RateLimited(ApiError):
    """The key has as many calls running as it may, or has begun as many in a minute."""

    status: ClassVar[int] = 429
    type: ClassVar[str] = "requests"
    default_code: ClassVar[str | None] = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: float, headers: Mapping[str, str]) -> None:
        super().__init__(message, headers={**headers, "Retry-After": whole_seconds(retry_after_s)})


class ServerFault(ApiError):
    """Not the caller's doing."""

    type: ClassVar[str] = "server_error"


class EngineFailure(ServerFault):
    """The engine could not finish the job; nothing was charged."""

    status: ClassVar[int] = 500
    default_code: ClassVar[str | None] = "engine_failure"


class Overloaded(ServerFault):
    """No room now."""

    status: ClassVar[int] = 503
    default_code: ClassVar[str | None] = "server_overloaded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, headers={"Retry-After": whole_seconds(retry_after_s)})


class TimedOut(ServerFault):
    """The job ran past its time limit; nothing was charged."""

    status: ClassVar[int] = 504
    default_code: ClassVar[str | None] = "timeout"


class KeptError(ApiError):
    """The error that an earlier call ended with, word by word."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message")), param=error.get("param"), code=error.get("code"))
        self.status = status  # type: ignore[misc]  # its class is forgotten; its status is not
        self._error = dict(error)

    def body(self) -> dict[str, Any]:
        """As it was."""
        return {"error": self._error}
