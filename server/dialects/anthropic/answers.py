"""The answers of the Messages routes: a message, the events of a stream; and how a chat's events become them."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, get_args

from typing_extensions import TypedDict

from pipelines.protocol import chat
from server.dialects.anthropic.errors import MessageError
from server.flows.chat.events import AnswerEvent
from server.flows.chat.tools import read_arguments

SIGNATURE = "ZGFya3Jvb20="  # of thoughts: base64, as some clients decode it
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
REASONS: dict[chat.FinishReason, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class TextContent(TypedDict):
    """A text of the answer."""

    type: Literal["text"]
    text: str


class ThinkingContent(TypedDict):
    """The text that the model wrote before its answer. The signature says nothing: clients give back signed thoughts
    alone, and it is not checked then."""

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


class OutputDetails(TypedDict):
    """What the output's tokens were."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """Token counts."""

    input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
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


class SignatureDelta(TypedDict):
    """The signature of thoughts, at their end."""

    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(TypedDict):
    """More of a call's input, as JSON text."""

    type: Literal["input_json_delta"]
    partial_json: str


ContentDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockDelta(TypedDict):
    """More of the open block."""

    type: Literal["content_block_delta"]
    index: int
    delta: ContentDelta


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


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
EVENTS = (*get_args(MessageEvent), MessageError)


class MessageWriter:
    """From events to events: at most one block of the content is open."""

    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._index = -1  # of the block that is open, or was last
        self._open: str | int | None = None  # its type; for a tool call, the call's index
        self._end: MessageEnd = {"stop_reason": "end_turn", "stop_sequence": None}

    def write(self, event: AnswerEvent) -> Iterator[MessageEvent]:
        """Yield the events of the stream that this one becomes: none for events of other choices."""
        match event:
            case chat.Admitted():
                yield {"type": "message_start", "message": self._message(event.prompt_tokens)}
            case chat.TextDelta(choice=0):
                if self._open != "text":
                    yield from self._begin("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": event.text})
            case chat.ReasoningDelta(choice=0):
                if self._open != "thinking":
                    yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": event.text})
            case chat.ToolCallDelta(choice=0):
                if self._open != event.index or event.call_id is not None:
                    call_id, name = event.call_id or "", event.name or ""
                    yield from self._begin(event.index, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
                if event.arguments:
                    yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            case chat.ChoiceFinished(choice=0):
                reason = "stop_sequence" if event.stop is not None else REASONS[event.reason]
                self._end = {"stop_reason": reason, "stop_sequence": event.stop}
            case chat.ChatFinished():
                yield from self._close()
                yield {"type": "message_delta", "delta": self._end, "usage": _usage(event.usage)}
                yield {"type": "message_stop"}

    def _message(self, prompt_tokens: int) -> MessageAnswer:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(chat.ChatUsage(prompt_tokens, 0)),
        }

    def _begin(self, kind: str | int, block: Content) -> Iterator[MessageEvent]:
        yield from self._close()
        self._index, self._open = self._index + 1, kind
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: ContentDelta) -> BlockDelta:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[MessageEvent]:
        if self._open is not None:
            if self._open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}


async def collect(events: AsyncIterator[MessageEvent]) -> MessageAnswer:
    """Return the message that a stream makes, which begins with it."""
    message: MessageAnswer
    arguments = ""
    async for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                arguments = ""
            case "content_block_delta":
                arguments += _extend(message["content"][-1], event["delta"])
            case "content_block_stop":
                block = message["content"][-1]
                if block["type"] == "tool_use":
                    block["input"] = read_arguments(arguments)
            case "message_delta":
                message["stop_reason"] = event["delta"]["stop_reason"]
                message["stop_sequence"] = event["delta"]["stop_sequence"]
                message["usage"] = event["usage"]
    return message


def _extend(block: Content, delta: ContentDelta) -> str:
    """Add a delta to its block, and return what it adds to the arguments of a call."""
    if delta["type"] == "input_json_delta":
        return delta["partial_json"]
    if delta["type"] == "text_delta" and block["type"] == "text":
        block["text"] += delta["text"]
    if delta["type"] == "thinking_delta" and block["type"] == "thinking":
        block["thinking"] += delta["thinking"]
    if delta["type"] == "signature_delta" and block["type"] == "thinking":
        block["signature"] = delta["signature"]
    return ""


def _usage(usage: chat.ChatUsage) -> MessageUsage:
    """Return the counts. Here the prompt's tokens are those that were not cached."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }
