"""A chat's events as the answer of generateContent. Pure."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from pipelines.protocol.chat import (
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.flows.chat.events import AnswerEvent, ImageDelta
from server.flows.chat.tools import read_arguments

Json = dict[str, Any]
REASONS: dict[FinishReason, str] = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


class CandidateWriter:
    """From events to chunks of the answer. A call is written whole, when it is complete."""

    def __init__(self, response_id: str, model: str) -> None:
        self._head: Json = {"modelVersion": model, "responseId": response_id}
        self._calls: dict[int, dict[int, Json]] = {}  # by choice and the call's index; arguments are text
        self._images = False
        self._cut: dict[int, str] = {}  # by choice: what of an image's prompt was not read
        self._ends: list[Json] = []  # kept for the last chunk, which has the usage

    def write(self, event: AnswerEvent) -> Iterator[Json]:
        """Yield the chunks that this event becomes."""
        match event:
            case TextDelta():
                yield self._chunk(event.choice, {"text": event.text})
            case ReasoningDelta():
                yield self._chunk(event.choice, {"text": event.text, "thought": True})
            case ImageDelta():
                self._images = True
                if event.truncated:
                    self._cut[event.choice] = event.truncated
                yield self._chunk(event.choice, {"inlineData": {"mimeType": event.media_type, "data": event.data}})
            case ToolCallDelta():
                calls = self._calls.setdefault(event.choice, {})
                call = calls.setdefault(event.index, {"id": event.call_id, "name": event.name, "arguments": ""})
                call["arguments"] += event.arguments
            case ChoiceFinished():
                for call in self._calls.get(event.choice, {}).values():
                    made = {"id": call["id"], "name": call["name"], "args": read_arguments(call["arguments"])}
                    yield self._chunk(event.choice, {"functionCall": made})
                cut = {"finishMessage": self._cut[event.choice]} if event.choice in self._cut else {}
                self._ends.append({"index": event.choice, "finishReason": REASONS[event.reason], **cut})
            case ChatFinished():
                yield {"candidates": self._ends, "usageMetadata": self._usage(event.usage), **self._head}

    def _chunk(self, choice: int, part: Json) -> Json:
        return {"candidates": [{"index": choice, "content": {"role": "model", "parts": [part]}}], **self._head}

    def _usage(self, usage: ChatUsage) -> Json:
        """Return the counts: a model's thoughts are counted apart here."""
        counts = {
            "promptTokenCount": usage.prompt_tokens,
            "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
            "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        }
        thoughts = {"thoughtsTokenCount": usage.reasoning_tokens} if usage.reasoning_tokens else {}
        cached = {"cachedContentTokenCount": usage.cached_tokens} if usage.cached_tokens else {}
        kind = "IMAGE" if self._images else "TEXT"
        details = [{"modality": kind, "tokenCount": counts["candidatesTokenCount"]}]
        return {**counts, **thoughts, **cached, "candidatesTokensDetails": details}


async def candidate_events(response_id: str, model: str, events: AsyncIterator[AnswerEvent]) -> AsyncIterator[Json]:
    """Yield the chunks of a stream. Raises the errors of `events`."""
    writer = CandidateWriter(response_id, model)
    async for event in events:
        for chunk in writer.write(event):
            yield chunk


async def collect(chunks: AsyncIterator[Json]) -> Json:
    """Return the answer that a stream makes: each candidate once, with its texts joined."""
    candidates: dict[int, Json] = {}
    rest: Json = {}
    async for chunk in chunks:
        rest = {name: value for name, value in chunk.items() if name != "candidates"}
        for piece in chunk["candidates"]:
            content: Json = {"role": "model", "parts": []}
            candidate = candidates.setdefault(piece["index"], {"index": piece["index"], "content": content})
            for part in piece.get("content", {}).get("parts", ()):
                _append(candidate["content"]["parts"], part)
            candidate |= {name: value for name, value in piece.items() if name.startswith("finish")}
    return {"candidates": [candidate for _, candidate in sorted(candidates.items())], **rest}


def _append(parts: list[Json], part: Json) -> None:
    """Add a part. A text is joined with the text before it, if both are thoughts or neither is."""
    last = parts[-1] if parts else {}
    if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
        parts[-1] = {**last, "text": last["text"] + part["text"]}
    else:
        parts.append(part)
