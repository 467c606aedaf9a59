"""From a chat's events to OpenAI's objects: one completion, or the chunks of a stream."""

import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.protocol.chat import (
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)
from pipelines.protocol.tiers import ServiceTier
from server.flows.chat.custom_tools import CustomCallDelta, CustomCalls
from server.flows.chat.events import AnswerEvent, ImageDelta, RawItem

Json = dict[str, Any]
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

    def chunk(self, choices: list[Json]) -> Json:
        """Return one chunk, without usage."""
        return self._object("chat.completion.chunk", choices)

    def completion(self, choices: list[Json], usage: ChatUsage) -> Json:
        """Return the object of a whole completion, with its choices and usage."""
        return {**self._object("chat.completion", choices), "usage": usage_json(usage)}

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": self.tier,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


@dataclass(slots=True)
class _Choice:
    """The deltas of one choice, collected."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, Json] = field(default_factory=dict)
    images: list[Json] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionWriter:
    """How a chat's events are written as OpenAI's objects."""

    head: CompletionHead
    n: int = 1
    logprobs: bool = False
    include_usage: bool = False
    custom_tools: Collection[str] = ()  # names of the tools that take texts

    async def collect(self, events: AsyncIterator[AnswerEvent]) -> Json:
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
                        _add(choices[event.choice], event)
                    case ChoiceFinished():
                        choices[event.choice].finish_reason = event.reason
                    case ChatFinished():
                        usage = event.usage
        written = [_choice_json(i, choice, self.logprobs) for i, choice in enumerate(choices)]
        return recorded or self.head.completion(written, usage)

    async def chunks(self, events: AsyncIterator[AnswerEvent]) -> AsyncIterator[Json]:
        """Yield for each choice its role, its deltas and its finish reason; last the usage, if the request wants it."""
        started: set[int] = set()
        usage, custom = {"usage": None} if self.include_usage else {}, CustomCalls(self.custom_tools)
        async for sent in events:
            if isinstance(sent, RawItem):
                yield sent.body
                continue
            for event in custom.read(sent):
                if isinstance(event, ChatFinished) and self.include_usage:
                    yield {**self.head.chunk([]), "usage": usage_json(event.usage)}
                if not isinstance(event, Delta | ChoiceFinished):
                    continue
                if event.choice not in started:
                    started.add(event.choice)
                    yield {**self.head.chunk([_chunk_choice(event.choice, _role(event))]), **usage}
                yield {**self.head.chunk([_event_choice(event, self.logprobs)]), **usage}


def usage_json(usage: ChatUsage) -> Json:
    """Return the token counts. This server has no audio or predicted outputs, so their counts are zero."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _role(first: Delta | ChoiceFinished) -> Json:
    content = None if isinstance(first, ToolCallDelta | CustomCallDelta) else ""
    return {"role": "assistant", "content": content, "refusal": None}


def _event_choice(event: Delta | ChoiceFinished, logprobs: bool) -> Json:
    match event:
        case TextDelta():
            tokens = _logprobs_json(event.logprobs) if logprobs else None
            return _chunk_choice(event.choice, {"content": event.text}, tokens)
        case ReasoningDelta():
            return _chunk_choice(event.choice, {"reasoning_content": event.text})
        case ToolCallDelta():
            return _chunk_choice(event.choice, {"tool_calls": [_tool_call_delta(event)]})
        case CustomCallDelta():
            return _chunk_choice(event.choice, {"tool_calls": [_custom_call_delta(event)]})
        case ImageDelta():
            text = {"content": event.text} if event.text else {}
            return _chunk_choice(event.choice, {**text, "images": [_image(event)]})
        case ChoiceFinished():
            return {**_chunk_choice(event.choice, {}), "finish_reason": event.reason}


def _chunk_choice(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _tool_call_delta(event: ToolCallDelta) -> Json:
    if event.call_id is None:
        return {"index": event.index, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.index, "id": event.call_id, "type": "function", "function": function}


def _custom_call_delta(event: CustomCallDelta) -> Json:
    if event.call_id is None:
        return {"index": event.index, "custom": {"input": event.text}}
    custom = {"name": event.name, "input": event.text}
    return {"index": event.index, "id": event.call_id, "type": "custom", "custom": custom}


def _image(event: ImageDelta) -> Json:
    cut = {"truncated": event.truncated} if event.truncated else {}
    return {"index": event.index, "type": "image_url", "image_url": {"url": event.data_uri}, **cut}


def _add(choice: _Choice, event: Delta) -> None:
    match event:
        case ImageDelta():
            choice.images.append(_image(event))
            choice.text.append(event.text)
        case TextDelta():
            choice.text.append(event.text)
            choice.logprobs.extend(event.logprobs)
        case ReasoningDelta():
            choice.reasoning.append(event.text)
        case ToolCallDelta() if event.index in choice.calls:
            choice.calls[event.index]["function"]["arguments"] += event.arguments
        case ToolCallDelta():
            function = {"name": event.name, "arguments": event.arguments}
            choice.calls[event.index] = {"id": event.call_id, "type": "function", "function": function}
        case CustomCallDelta() if event.index in choice.calls:
            choice.calls[event.index]["custom"]["input"] += event.text
        case CustomCallDelta():
            custom = {"name": event.name, "input": event.text}
            choice.calls[event.index] = {"id": event.call_id, "type": "custom", "custom": custom}


def _choice_json(index: int, choice: _Choice, logprobs: bool) -> Json:
    text = "".join(choice.text)
    message: Json = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if choice.calls:
        message["content"] = text or None
        message["tool_calls"] = [call for _, call in sorted(choice.calls.items())]
    if choice.images:
        message["images"] = choice.images
    if choice.reasoning:
        message["reasoning_content"] = "".join(choice.reasoning)
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs_json(choice.logprobs) if logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def _logprobs_json(tokens: Sequence[TokenLogprob]) -> Json:
    content = [{**_token_json(token), "top_logprobs": [_token_json(top) for top in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _token_json(token: TokenLogprob | TopToken) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}
