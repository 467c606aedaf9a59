"""The messages of a chat, as OpenAI's SDKs send them."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

FUNCTION_NAME = r"^[A-Za-z0-9_.:-]{1,128}$"  # of every protocol: Google's has dots and colons, Anthropic's 128 letters
MAX_TEXT = 10_485_760  # characters, OpenAI's limit
BoundedText = Annotated[str, Field(max_length=MAX_TEXT)]


class LenientModel(BaseModel):
    """Unknown keys are ignored: SDKs send back messages with fields that other servers added. Null means absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict) or None not in values.values():
            return values
        return {name: value for name, value in values.items() if value is not None}


class TextPart(LenientModel):
    type: Literal["text"]
    text: BoundedText


class ImageUrl(LenientModel):
    """A URL or data URI. `detail` is a hint for models that have several resolutions."""

    url: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(LenientModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class RefusalPart(LenientModel):
    type: Literal["refusal"]
    refusal: BoundedText


def _text_or_parts(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "parts" if isinstance(value, list) else None


Text = Annotated[BoundedText, Tag("text")]
TEXT_OR_PARTS = Discriminator(_text_or_parts, custom_error_type="text_or_parts", custom_error_message="text or parts")
AnyUserPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]
AnyAssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
AnyTextPart = Annotated[TextPart, Field()]
TextContent = Annotated[Text | Annotated[list[AnyTextPart], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]
UserContent = Annotated[Text | Annotated[list[AnyUserPart], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]
AssistantContent = Annotated[Text | Annotated[list[AnyAssistantPart], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]


class SystemMessage(LenientModel):
    """Instructions; `developer` is OpenAI's newer name of the role."""

    role: Literal["system", "developer"]
    content: TextContent
    name: str | None = None


class UserMessage(LenientModel):
    role: Literal["user"]
    content: UserContent
    name: str | None = None


class CalledFunction(LenientModel):
    """`arguments` is JSON as a model generated it, so it may be invalid."""

    name: Annotated[str, Field(min_length=1)]
    arguments: BoundedText


class ToolCall(LenientModel):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"]
    function: CalledFunction


class CalledCustomTool(LenientModel):
    """`input` is text."""

    name: Annotated[str, Field(min_length=1)]
    input: BoundedText


class CustomCall(LenientModel):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["custom"]
    custom: CalledCustomTool


def _with_type(value: object) -> object:
    """Add the type of a function's call, which some clients leave out."""
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    return {**value, "type": "function"}


AnyToolCall = Annotated[Annotated[ToolCall | CustomCall, Field(discriminator="type")], BeforeValidator(_with_type)]


class AssistantMessage(LenientModel):
    """`function_call` and `audio` must be null: no chat template here uses them."""

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: BoundedText | None = None
    name: str | None = None
    tool_calls: list[AnyToolCall] | None = None
    images: list[ImagePart] | None = None  # drawn in an earlier round
    reasoning_content: BoundedText | None = None  # thoughts of an earlier round
    reasoning: BoundedText | None = None  # the same, as other servers call it
    function_call: None = None
    audio: None = None


class ToolMessage(LenientModel):
    """The result of a tool call. A model that sees is shown its images."""

    role: Literal["tool"]
    content: UserContent
    tool_call_id: Annotated[str, Field(min_length=1)]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def custom_arguments(text: str) -> str:
    """Return a custom tool's input as the arguments of a function of one text, which it is for the model."""
    return json.dumps({"input": text}, ensure_ascii=False)
