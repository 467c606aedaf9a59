"""A chat's events as those of a stream of Messages, and these folded into one message. Pure."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from pipelines.protocol.chat import (
    Admitted,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.flows.chat.events import AnswerEvent
from server.flows.chat.tools import read_arguments

Json = dict[str, Any]
REASONS: dict[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}  # block -> delta, its field


class MessageWriter:
    """From events to events: at most one block of the content is open."""

    def __init__(self, message_id: str, model: str) -> None:
        self._head: Json = {"id": message_id, "type": "message", "role": "assistant", "model": model}
        self._index = -1  # of the block that is open, or was last
        self._open: str | int | None = None  # its type; for a tool call, the call's index
        self._end: Json = {"stop_reason": "end_turn", "stop_sequence": None}

    def write(self, event: AnswerEvent) -> Iterator[Json]:
        """Yield the events of the stream that this one becomes: none for events of other choices."""
        match event:
            case Admitted():
                usage = _usage(ChatUsage(event.prompt_tokens, 0))
                ends: Json = {"stop_reason": None, "stop_sequence": None}
                yield {"type": "message_start", "message": {**self._head, "content": [], **ends, "usage": usage}}
            case TextDelta(choice=0):
                yield from self._text("text", event.text, {"type": "text", "text": ""})
            case ReasoningDelta(choice=0):
                yield from self._text("thinking", event.text, {"type": "thinking", "thinking": "", "signature": ""})
            case ToolCallDelta(choice=0):
                yield from self._call(event)
            case ChoiceFinished(choice=0):
                reason = "stop_sequence" if event.stop is not None else REASONS[event.reason]
                self._end = {"stop_reason": reason, "stop_sequence": event.stop}
            case ChatFinished():
                yield from self._close()
                usage = _usage(event.usage)
                yield {"type": "message_delta", "delta": self._end, "usage": usage}
                yield {"type": "message_stop"}

    def _text(self, kind: str, text: str, block: Json) -> Iterator[Json]:
        if self._open != kind:
            yield from self._begin(kind, block)
        delta, field = DELTAS[kind]
        yield self._delta({"type": delta, field: text})

    def _call(self, event: ToolCallDelta) -> Iterator[Json]:
        if self._open != event.index or event.call_id is not None:
            block = {"type": "tool_use", "id": event.call_id or "", "name": event.name or "", "input": {}}
            yield from self._begin(event.index, block)
        if event.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})

    def _begin(self, kind: str | int, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._index, self._open = self._index + 1, kind
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[Json]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}


async def message_events(message_id: str, model: str, events: AsyncIterator[AnswerEvent]) -> AsyncIterator[Json]:
    """Yield the events of a stream. Raises the errors of `events`."""
    writer = MessageWriter(message_id, model)
    async for event in events:
        for written in writer.write(event):
            yield written


async def collect(events: AsyncIterator[Json]) -> Json:
    """Return the message that a stream makes."""
    message: Json = {}
    content: list[Json] = []
    arguments = ""
    async for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                content.append(dict(event["content_block"]))
                arguments = ""
            case "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    _, field = DELTAS[content[-1]["type"]]
                    content[-1][field] += delta[field]
            case "content_block_stop" if content[-1]["type"] == "tool_use":
                content[-1]["input"] = read_arguments(arguments)
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    return {**message, "content": content}


def _usage(usage: ChatUsage) -> Json:
    """Return the counts. Here the prompt's tokens are those that were not cached."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }
