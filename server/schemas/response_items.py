"""The input of a response: a text, or items as OpenAI's SDKs send them and send them back."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from server.schemas.chat_messages import Shape, Switch, Text, Words

Id = Annotated[str, Field(min_length=1, max_length=200)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Shape):
    """Words."""

    type: Literal["input_text"]
    text: Words


class InputImage(Shape):
    """A picture by https URL, by the URL of one of this server's own results, or by data URI."""

    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: None = None


class OutputText(Shape):
    """What the model said in an earlier round."""

    type: Literal["output_text"]
    text: Words


class Refusal(Shape):
    """What the model said instead of an answer."""

    type: Literal["refusal"]
    refusal: Words


Part = Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")]
OutputPart = Annotated[InputText | InputImage, Field(discriminator="type")]


class MessageItem(Shape):
    """What somebody said."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[Text | Annotated[list[Part], Field(min_length=1), Tag("parts")], Switch]
    id: Id | None = None
    status: Status | None = None


class FunctionCallItem(Shape):
    """A call of a function of the caller's, which the model made."""

    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    arguments: Words
    id: Id | None = None
    status: Status | None = None


class FunctionOutputItem(Shape):
    """What that call came to."""

    type: Literal["function_call_output"]
    call_id: Id
    output: Annotated[Text | Annotated[list[OutputPart], Field(min_length=1), Tag("parts")], Switch]
    id: Id | None = None
    status: Status | None = None


class ImageCallItem(Shape):
    """A picture that was drawn. Its id is enough for one that this server stored."""

    type: Literal["image_generation_call"]
    id: Id
    status: str | None = None
    result: str | None = None
    revised_prompt: Words | None = None


class ReasoningItem(Shape):
    """What the model thought, sent back. Models here are not shown what they thought before."""

    type: Literal["reasoning"]
    id: Id
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None


class ItemReference(Shape):
    """An item that this server stored."""

    type: Literal["item_reference"]
    id: Id


def _with_type(value: object) -> object:
    """Messages and references are often sent without their type."""
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    return {**value, "type": "message" if "role" in value else "item_reference"}


Item = Annotated[
    Annotated[
        MessageItem | FunctionCallItem | FunctionOutputItem | ImageCallItem | ReasoningItem | ItemReference,
        Field(discriminator="type"),
    ],
    BeforeValidator(_with_type),
]
