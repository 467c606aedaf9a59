"""From a chat's events to OpenAI's objects: one completion, or the chunks of a stream."""

import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

from pipelines.protocol.chat import (
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from pipelines.protocol.tiers import ServiceTier
from server.flows.chat.custom_tools import CustomCallDelta, CustomCalls
from server.flows.chat.events import AnswerEvent, ImageDelta, RawItem
from server.schemas.chat_completion import (
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    CompletionChoice,
    CompletionCustomCall,
    CompletionDelta,
    CompletionImage,
    CompletionMessage,
    CompletionToolCall,
    CompletionUsage,
    logprobs_json,
    usage_json,
)
from server.schemas.chat_completion import ToolCallDelta as CallDelta
from server.state.active_chats import Sent

Delta = TextDelta | ReasoningDelta | ToolCallDelta | CustomCallDelta | ImageDelta


def new_completion_id() -> str:
    """Return an id that is not used yet."""
    return f"chatcmpl-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """The fields that all chunks of an answer share."""

    id: str
    created: int  # Unix seconds
    model: str
    fingerprint: str
    tier: ServiceTier = "default"

    @classmethod
    def of_call(cls, model: str, tier: ServiceTier = "default") -> "CompletionHead":
        """Return the head of an answer that no local chat model writes: there is no checkpoint to tell apart."""
        return cls(new_completion_id(), int(time.time()), model, "fp_darkroom", tier)


@dataclass(slots=True)
class _Choice:
    """The deltas of one choice, collected."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, list[ToolCallDelta | CustomCallDelta]] = field(default_factory=dict)
    images: list[CompletionImage] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = "stop"

    def add(self, event: Delta) -> None:
        """Add a delta."""
        match event:
            case ImageDelta():
                self.images.append(_image(event))
                self.text.append(event.text)
            case TextDelta():
                self.text.append(event.text)
                self.logprobs.extend(event.logprobs)
            case ReasoningDelta():
                self.reasoning.append(event.text)
            case ToolCallDelta() | CustomCallDelta():
                self.calls.setdefault(event.index, []).append(event)

    def message(self) -> CompletionMessage:
        """Return the message that the deltas make."""
        text = "".join(self.text)
        message: CompletionMessage = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        if self.calls:
            message["content"] = text or None
            message["tool_calls"] = [_call(deltas) for _, deltas in sorted(self.calls.items())]
        if self.images:
            message["images"] = self.images
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        return message


@dataclass(frozen=True, slots=True)
class CompletionWriter:
    """How a chat's events are written as OpenAI's objects."""

    head: CompletionHead
    n: int = 1
    logprobs: bool = False
    include_usage: bool = False
    custom_tools: Collection[str] = ()  # names of the tools that take texts

    async def collect(self, events: AsyncIterator[AnswerEvent]) -> Sent:
        """Return the completion, when all events have come."""
        choices = [_Choice() for _ in range(self.n)]
        usage, custom, recorded = ChatUsage(0, 0), CustomCalls(self.custom_tools), None
        async for sent in events:
            if isinstance(sent, RawItem):
                recorded = sent.body  # its chat ends later, when it is recorded
                continue
            for event in custom.read(sent):
                match event:
                    case TextDelta() | ReasoningDelta() | ToolCallDelta() | CustomCallDelta() | ImageDelta():
                        choices[event.choice].add(event)
                    case ChoiceFinished():
                        choices[event.choice].finish_reason = event.reason
                    case ChatFinished():
                        usage = event.usage
        written = [self._choice(i, choice) for i, choice in enumerate(choices)]
        return recorded or self._completion(written, usage)

    async def chunks(self, events: AsyncIterator[AnswerEvent]) -> AsyncIterator[Sent]:
        """Yield for each choice its role, its deltas and its finish reason; last the usage, if the request wants it."""
        started: set[int] = set()
        custom = CustomCalls(self.custom_tools)
        async for sent in events:
            if isinstance(sent, RawItem):
                yield sent.body
                continue
            for event in custom.read(sent):
                if isinstance(event, ChatFinished) and self.include_usage:
                    yield self._chunk([], usage_json(event.usage))
                if not isinstance(event, Delta | ChoiceFinished):
                    continue
                if event.choice not in started:
                    started.add(event.choice)
                    yield self._chunk([_chunk_choice(event.choice, _role(event))])
                yield self._chunk([self._chunk_choice(event)])

    def _chunk(self, choices: list[ChunkChoice], usage: CompletionUsage | None = None) -> ChatCompletionChunk:
        chunk: ChatCompletionChunk = {
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "service_tier": self.head.tier,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
        }
        if self.include_usage:
            chunk["usage"] = usage
        return chunk

    def _completion(self, choices: list[CompletionChoice], usage: ChatUsage) -> ChatCompletion:
        return {
            "id": self.head.id,
            "object": "chat.completion",
            "created": self.head.created,
            "model": self.head.model,
            "service_tier": self.head.tier,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
            "usage": usage_json(usage),
        }

    def _chunk_choice(self, event: Delta | ChoiceFinished) -> ChunkChoice:
        if isinstance(event, ChoiceFinished):
            return {**_chunk_choice(event.choice, {}), "finish_reason": event.reason}
        choice = _chunk_choice(event.choice, _delta(event))
        if isinstance(event, TextDelta) and self.logprobs:
            choice["logprobs"] = logprobs_json(event.logprobs)
        return choice

    def _choice(self, index: int, choice: _Choice) -> CompletionChoice:
        return {
            "index": index,
            "message": choice.message(),
            "logprobs": logprobs_json(choice.logprobs) if self.logprobs else None,
            "finish_reason": choice.finish_reason,
        }


def _chunk_choice(index: int, delta: CompletionDelta) -> ChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _role(first: Delta | ChoiceFinished) -> CompletionDelta:
    content = None if isinstance(first, ToolCallDelta | CustomCallDelta) else ""
    return {"role": "assistant", "content": content, "refusal": None}


def _delta(event: Delta) -> CompletionDelta:
    match event:
        case TextDelta():
            return {"content": event.text}
        case ReasoningDelta():
            return {"reasoning_content": event.text}
        case ToolCallDelta() | CustomCallDelta():
            return {"tool_calls": [_call_delta(event)]}
        case ImageDelta():
            return {"content": event.text, "images": [_image(event)]} if event.text else {"images": [_image(event)]}


def _call_delta(event: ToolCallDelta | CustomCallDelta) -> CallDelta:
    index, call_id, name = event.index, event.call_id, event.name or ""
    if isinstance(event, CustomCallDelta):
        if call_id is None:
            return {"index": index, "custom": {"input": event.text}}
        return {"index": index, "id": call_id, "type": "custom", "custom": {"name": name, "input": event.text}}
    if call_id is None:
        return {"index": index, "function": {"arguments": event.arguments}}
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": event.arguments}}


def _call(deltas: Sequence[ToolCallDelta | CustomCallDelta]) -> CompletionToolCall | CompletionCustomCall:
    """Return the call that the deltas make. The first has its id and name."""
    call_id, name = deltas[0].call_id or "", deltas[0].name or ""
    text = "".join(each.text if isinstance(each, CustomCallDelta) else each.arguments for each in deltas)
    if isinstance(deltas[0], CustomCallDelta):
        return {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _image(event: ImageDelta) -> CompletionImage:
    image: CompletionImage = {"index": event.index, "type": "image_url", "image_url": {"url": event.data_uri}}
    if event.truncated:
        image["truncated"] = event.truncated
    return image
