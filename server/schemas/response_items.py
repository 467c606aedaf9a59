"""The input of a response: a text, or items as OpenAI's SDKs send them and return them in later rounds."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from server.schemas.chat_messages import TEXT_OR_PARTS, BoundedText, LenientModel, Text
from server.schemas.hosted_items import HostedItem, Id

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(LenientModel):
    """A text part of a message."""

    type: Literal["input_text"]
    text: BoundedText


class InputImage(LenientModel):
    """An image by https URL, by the URL of one of this server's own results, or by data URI."""

    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: None = None


class OutputText(LenientModel):
    """A text part of an earlier answer."""

    type: Literal["output_text"]
    text: BoundedText


class Refusal(LenientModel):
    """A refusal in an earlier answer."""

    type: Literal["refusal"]
    refusal: BoundedText


Part = Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")]
OutputPart = Annotated[InputText | InputImage, Field(discriminator="type")]


class MessageItem(LenientModel):
    """A message of the user, the developer or the assistant."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[Text | Annotated[list[Part], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]
    id: Id | None = None
    status: Status | None = None


class FunctionCallItem(LenientModel):
    """A call of a client's function, made by the model in an earlier round."""

    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    arguments: BoundedText
    namespace: str | None = None
    id: Id | None = None
    status: Status | None = None


class CustomCallItem(LenientModel):
    """A call of a client's custom tool, made by the model in an earlier round."""

    type: Literal["custom_tool_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    input: BoundedText
    namespace: str | None = None
    id: Id | None = None
    status: Status | None = None


class FunctionOutputItem(LenientModel):
    """The result of a function's or a custom tool's call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Id
    output: Annotated[Text | Annotated[list[OutputPart], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]
    id: Id | None = None
    status: Status | None = None


class ImageCallItem(LenientModel):
    """A generated image. The id is enough if this server stored it. One that has failed has none."""

    type: Literal["image_generation_call"]
    id: Id
    status: str | None = None
    result: str | None = None
    revised_prompt: BoundedText | None = None


class ReasoningItem(LenientModel):
    """Reasoning of an earlier round, for models whose templates show it."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None


class CompactionItem(LenientModel):
    """The item that /v1/responses/compact made of earlier ones."""

    type: Literal["compaction"]
    encrypted_content: BoundedText
    id: Id | None = None


class ItemReference(LenientModel):
    """A stored item, by its id."""

    type: Literal["item_reference"]
    id: Id


def _with_type(value: object) -> object:
    """Add the type of messages and references, which clients often leave out."""
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    return {**value, "type": "message" if "role" in value else "item_reference"}


Item = Annotated[
    Annotated[
        MessageItem
        | FunctionCallItem
        | CustomCallItem
        | FunctionOutputItem
        | ImageCallItem
        | ReasoningItem
        | CompactionItem
        | ItemReference
        | HostedItem,
        Field(discriminator="type"),
    ],
    BeforeValidator(_with_type),
]
