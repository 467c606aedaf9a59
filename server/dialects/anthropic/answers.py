"""The answers of the Messages routes: a message, or the events of a stream."""

from typing import Any, Literal

from typing_extensions import TypedDict

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextContent(TypedDict):
    """A text of the answer."""

    type: Literal["text"]
    text: str


class ThinkingContent(TypedDict):
    """The text that the model wrote before its answer. It is not signed."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(TypedDict):
    """A call of one of the request's tools. `input` that is no JSON object comes as `{"INVALID_JSON": text}`."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class MessageUsage(TypedDict):
    """Token counts. Nothing is cached between calls."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class MessageAnswer(TypedDict):
    """The answer without `stream`, and the beginning of a stream."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    """How long the conversation is for the model."""

    input_tokens: int


class MessageStart(TypedDict):
    """The first event. The message has no content yet."""

    type: Literal["message_start"]
    message: MessageAnswer


class BlockStart(TypedDict):
    """A block of the content begins."""

    type: Literal["content_block_start"]
    index: int
    content_block: Content


class TextDelta(TypedDict):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    """More of the thoughts."""

    type: Literal["thinking_delta"]
    thinking: str


class InputJsonDelta(TypedDict):
    """More of a call's input, as JSON text."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    """More of the open block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class BlockStop(TypedDict):
    """The block is complete."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(TypedDict):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """The values that are known at the end only."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(TypedDict):
    """The last event."""

    type: Literal["message_stop"]


class MessageErrorDetail(TypedDict, total=False):
    """`type` and `message` are always there. `param` names the field, `code` is made for programs."""

    type: str
    message: str
    param: str
    code: str


class MessageError(TypedDict):
    """The body of every error, and the event that ends a stream early."""

    type: Literal["error"]
    error: MessageErrorDetail


EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessageError)
