"""The messages of a chat, as OpenAI's SDKs send them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

FUNCTION_NAME = r"^[A-Za-z0-9_-]{1,64}$"
MAX_TEXT = 10_485_760  # characters, OpenAI's limit
BoundedText = Annotated[str, Field(max_length=MAX_TEXT)]


class LenientModel(BaseModel):
    """Unknown keys are ignored: SDKs send back messages with fields that other servers added."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class TextPart(LenientModel):
    type: Literal["text"]
    text: BoundedText


class ImageUrl(LenientModel):
    """A URL or data URI. `detail` is a hint for models that have several resolutions."""

    url: Annotated[str, Field(min_length=1)]
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
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(LenientModel):
    """`function_call` and `audio` must be null: no chat template here uses them."""

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: BoundedText | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    images: list[ImagePart] | None = None  # drawn in an earlier round
    function_call: None = None
    audio: None = None


class ToolMessage(LenientModel):
    """The result of a tool call."""

    role: Literal["tool"]
    content: TextContent
    tool_call_id: Annotated[str, Field(min_length=1)]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def plain_message(message: SystemMessage | UserMessage | AssistantMessage | ToolMessage) -> dict[str, Any]:
    """The message in the engine's protocol: without null keys, and with refusals as plain text."""
    plain = message.model_dump(exclude_none=True, exclude={"refusal", "images"})
    if isinstance(message, AssistantMessage):
        plain.setdefault("content", message.refusal)
        if not plain.get("tool_calls"):
            plain.pop("tool_calls", None)
    if isinstance(content := plain["content"], list):
        plain["content"] = [_plain_part(part) for part in content]
    return plain


def _plain_part(part: dict[str, Any]) -> dict[str, Any]:
    """Images are removed: they are decoded and sent to the engine separately."""
    match part["type"]:
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case "image_url":
            return {"type": "image_url", "image_url": {"url": ""}}
    return part
