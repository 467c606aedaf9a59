"""The body of every answer that is not a success, as OpenAI's SDKs read it."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict


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
