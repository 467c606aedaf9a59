"""The messages of a chat, as OpenAI's SDKs send them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

FUNCTION_NAME = r"^[A-Za-z0-9_-]{1,64}$"
MAX_TEXT = 10_485_760  # characters, as OpenAI has it
Words = Annotated[str, Field(max_length=MAX_TEXT)]


class Shape(BaseModel):
    """Keys that nobody knows are left alone: SDKs send back what other servers answered."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class TextPart(Shape):
    """Words."""

    type: Literal["text"]
    text: Words


class ImageUrl(Shape):
    """A picture by https URL or data URI. `detail` is a hint for models that have several resolutions."""

    url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Shape):
    """A picture."""

    type: Literal["image_url"]
    image_url: ImageUrl


class RefusalPart(Shape):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: Words


def _text_or_parts(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "parts" if isinstance(value, list) else None


Text = Annotated[Words, Tag("text")]
Switch = Discriminator(_text_or_parts, custom_error_type="text_or_parts", custom_error_message="text or parts")
AnyUserPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]
AnyAssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
AnyTextPart = Annotated[TextPart, Field()]
TextContent = Annotated[Text | Annotated[list[AnyTextPart], Field(min_length=1), Tag("parts")], Switch]
UserContent = Annotated[Text | Annotated[list[AnyUserPart], Field(min_length=1), Tag("parts")], Switch]
AssistantContent = Annotated[Text | Annotated[list[AnyAssistantPart], Field(min_length=1), Tag("parts")], Switch]


class SystemMessage(Shape):
    """Instructions; `developer` is the newer word."""

    role: Literal["system", "developer"]
    content: TextContent
    name: str | None = None


class UserMessage(Shape):
    """What a person says and shows."""

    role: Literal["user"]
    content: UserContent
    name: str | None = None


class CalledFunction(Shape):
    """Which function, and with what: a JSON text, which may be as wrong as a model wrote it."""

    name: Annotated[str, Field(min_length=1)]
    arguments: Words


class ToolCall(Shape):
    """A call that an assistant made."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Shape):
    """What a model said. The last two are of kinds that this server can't show to a model."""

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: Words | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: None = None
    audio: None = None


class ToolMessage(Shape):
    """What a call came to."""

    role: Literal["tool"]
    content: TextContent
    tool_call_id: Annotated[str, Field(min_length=1)]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def plain_message(message: SystemMessage | UserMessage | AssistantMessage | ToolMessage) -> dict[str, Any]:
    """The message as the engine's contract has it: no absent keys, and a refusal is text like any other."""
    plain = message.model_dump(exclude_none=True, exclude={"refusal"})
    if isinstance(message, AssistantMessage):
        plain.setdefault("content", message.refusal)
        if not plain.get("tool_calls"):
            plain.pop("tool_calls", None)
    if isinstance(content := plain["content"], list):
        plain["content"] = [_plain_part(part) for part in content]
    return plain


def _plain_part(part: dict[str, Any]) -> dict[str, Any]:
    """An image's bytes travel as pixels, apart from the message that shows it."""
    match part["type"]:
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case "image_url":
            return {"type": "image_url", "image_url": {"url": ""}}
    return part
