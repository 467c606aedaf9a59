"""The events of a response's stream, in the words of OpenAI's API. `sequence_number` counts from 0 in each response."""

from typing import Annotated, Literal

from pydantic import Field, RootModel
from typing_extensions import TypedDict

from pipelines.protocol.images import Background
from server.errors import ErrorDetail
from server.schemas.response_answers import OutputItem, OutputTextPart, TokenLogprob
from server.schemas.response_object import ResponseObject

SnapshotKind = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class _Event(TypedDict):
    sequence_number: int


class ItemPlace(_Event):
    """Where an event of an item belongs."""

    item_id: str
    output_index: int


class PartPlace(ItemPlace):
    """Where an event of a part belongs."""

    content_index: int


class SnapshotEvent(_Event):
    """The whole response as it is now. `completed`, `incomplete` and `failed` end the stream; a cancelled response
    ends with `incomplete`."""

    type: SnapshotKind
    response: ResponseObject


class OutputItemEvent(_Event):
    """An item begins, or is done."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class ContentPartEvent(PartPlace):
    """A part of a message begins, or is done."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputTextPart


class TextDeltaEvent(PartPlace):
    """New text of a message."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class TextDoneEvent(PartPlace):
    """The text of a message is complete."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(PartPlace):
    """New text of the reasoning."""

    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDoneEvent(PartPlace):
    """The reasoning is complete."""

    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDeltaEvent(ItemPlace):
    """New text of a function call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(ItemPlace):
    """The arguments of a function call are complete."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class CustomInputDeltaEvent(ItemPlace):
    """New text of a custom tool call's input."""

    type: Literal["response.custom_tool_call_input.delta"]
    delta: str


class CustomInputDoneEvent(ItemPlace):
    """The input of a custom tool call is complete."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ImageCallEvent(ItemPlace):
    """How far a call of the image tool is."""

    type: Literal[
        "response.image_generation_call.in_progress",
        "response.image_generation_call.generating",
        "response.image_generation_call.completed",
    ]


class ImagePreviewEvent(ItemPlace):
    """A preview of an image."""

    type: Literal["response.image_generation_call.partial_image"]
    partial_image_index: int
    partial_image_b64: str
    size: str
    quality: str
    background: Background
    output_format: str


class ResponseErrorEvent(_Event):
    """Why the response failed. `response.failed` follows."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None
    error: ErrorDetail


Event = (
    SnapshotEvent
    | OutputItemEvent
    | ContentPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
    | CustomInputDeltaEvent
    | CustomInputDoneEvent
    | ImageCallEvent
    | ImagePreviewEvent
    | ResponseErrorEvent
)


class ResponseEvent(RootModel[Annotated[Event, Field(discriminator="type")]]):
    """One event. Its `type` is also the name of the server-sent event."""
