"""The items of responses and conversations as clients get them, and how they are built."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from pipelines.protocol.images import Background
from server.errors import ErrorDetail
from server.schemas.response_items import ShellCallType, ShellOutputType, UnreadType

Role = Literal["user", "assistant", "system", "developer"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TopTokenLogprob(TypedDict):
    """A token with its log-probability, as text and as UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopTokenLogprob):
    """A token of the answer, with the most likely tokens at its position."""

    top_logprobs: list[TopTokenLogprob]


class OutputTextPart(TypedDict):
    """Text that the model wrote. `logprobs` are filled if the request includes them."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class OutputMessage(TypedDict):
    """A message of the model."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextPart]


class FunctionCall(TypedDict):
    """A call of one of the request's functions. `arguments` is JSON text as the model wrote it."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: NotRequired[str]


class CustomToolCall(TypedDict):
    """A call of one of the request's custom tools. `input` is text, by the tool's grammar if it has one."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: NotRequired[str]


class ReasoningPart(TypedDict):
    """Text that the model wrote before its answer."""

    type: str | None
    text: str | None


class ReasoningOutput(TypedDict):
    """The reasoning before an answer. `encrypted_content` is there if the request includes it: the text once more, for
    clients that keep and send nothing else."""

    id: str
    type: Literal["reasoning"]
    status: NotRequired[ItemStatus]
    summary: list[dict[str, Any]]
    content: list[ReasoningPart]
    encrypted_content: NotRequired[str]


class ImageCall(TypedDict):
    """A call of the image tool. A completed one has the image in `result`, as base64; null if its file is deleted.
    A failed one has the error."""

    id: str
    type: Literal["image_generation_call"]
    status: Literal["in_progress", "completed", "failed"]
    result: str | None
    revised_prompt: NotRequired[str]
    size: NotRequired[str]
    quality: NotRequired[str]
    background: NotRequired[Background]
    output_format: NotRequired[str]
    action: NotRequired[Literal["generate", "edit"]]
    url: NotRequired[str]
    truncated: NotRequired[str]
    error: NotRequired[ErrorDetail]


OutputItem = Annotated[
    OutputMessage | FunctionCall | CustomToolCall | ReasoningOutput | ImageCall, Field(discriminator="type")
]


class SentText(TypedDict):
    """Text of the request."""

    type: Literal["input_text"]
    text: str


class SentImage(TypedDict):
    """An image of the request, as it was sent or as a data URI; null if its file is deleted."""

    type: Literal["input_image"]
    image_url: str | None
    detail: str


class SentRefusal(TypedDict):
    """A refusal of an earlier round, sent back."""

    type: Literal["refusal"]
    refusal: str


SentPart = SentText | SentImage | OutputTextPart | SentRefusal


class SentMessage(TypedDict):
    """A message of the request, or one of an earlier response that the request named."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Role
    content: list[Annotated[SentPart, Field(discriminator="type")]]


class FunctionOutput(TypedDict):
    """The result of the caller's function or custom tool."""

    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    status: ItemStatus
    call_id: str
    output: str | list[Annotated[SentText | SentImage, Field(discriminator="type")]]


class Compaction(TypedDict):
    """A summary of earlier items, to be sent back in their place."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class OtherToolItem(TypedDict):
    """An item of a tool that this server does not run, with the fields that were sent."""

    id: str
    type: Literal["code_interpreter_call", "file_search_call", "mcp_call", ShellCallType, ShellOutputType, UnreadType]
    status: NotRequired[str]


InputItem = Annotated[
    SentMessage
    | FunctionCall
    | CustomToolCall
    | FunctionOutput
    | ReasoningOutput
    | ImageCall
    | Compaction
    | OtherToolItem,
    Field(discriminator="type"),
]


class InputItemList(TypedDict):
    """A page of a response's input items. Continue with `after` = `last_id` while `has_more` is true."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


def text_part(text: str, logprobs: Sequence[TokenLogprob] = ()) -> OutputTextPart:
    """Build the text part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(item_id: str, status: ItemStatus, content: list[OutputTextPart]) -> OutputMessage:
    """Build the item of an answer of the model."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(item_id: str, status: ItemStatus, text: str) -> ReasoningOutput:
    """Build the item of the model's reasoning."""
    content: list[ReasoningPart] = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}


def item_list(items: list[InputItem], *, has_more: bool) -> InputItemList:
    """Build a list of items."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
