"""The answers of generateContent: candidates, in a stream their parts as they come; and how a chat's events become
them."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from pipelines.protocol import chat
from server.flows.chat.events import AnswerEvent, ImageDelta
from server.flows.chat.tools import read_arguments

SIGNATURE = "ZGFya3Jvb20="  # of thoughts and calls: base64, as clients decode it
BlockReason = Literal["SAFETY", "IMAGE_SAFETY"]
GeminiFinish = Literal["STOP", "MAX_TOKENS", "SAFETY", "IMAGE_SAFETY"]
REASONS: dict[chat.FinishReason, GeminiFinish] = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


class InlineData(TypedDict):
    """An image, as base64."""

    mimeType: str
    data: str


class CandidateCall(TypedDict):
    """A call of one of the request's functions. `args` that are no JSON object come as `{"INVALID_JSON": text}`."""

    id: str
    name: str
    args: dict[str, Any]


class AnswerPart(TypedDict):
    """One of these. `thought`: the text is a thought before the answer. `thoughtSignature` says nothing: clients give
    back signed parts alone, and it is not checked then."""

    text: NotRequired[str]
    thought: NotRequired[bool]
    thoughtSignature: NotRequired[str]
    inlineData: NotRequired[InlineData]
    functionCall: NotRequired[CandidateCall]


class AnswerContent(TypedDict):
    """The model's message."""

    role: Literal["model"]
    parts: list[AnswerPart]


class Candidate(TypedDict):
    """One answer. The reason comes with its last part."""

    index: int
    content: NotRequired[AnswerContent]
    finishReason: NotRequired[GeminiFinish]
    finishMessage: NotRequired[str]


class ModalityCount(TypedDict):
    """Tokens of one kind."""

    modality: Literal["TEXT", "IMAGE"]
    tokenCount: int


class UsageMetadata(TypedDict):
    """Token counts of all candidates."""

    promptTokenCount: int
    candidatesTokenCount: int
    totalTokenCount: int
    cachedContentTokenCount: NotRequired[int]
    thoughtsTokenCount: NotRequired[int]
    candidatesTokensDetails: NotRequired[list[ModalityCount]]


class PromptFeedback(TypedDict):
    """Why there are no candidates."""

    blockReason: BlockReason
    blockReasonMessage: str


class GenerateAnswer(TypedDict):
    """The answer, and each event of a stream."""

    candidates: NotRequired[list[Candidate]]
    promptFeedback: NotRequired[PromptFeedback]
    usageMetadata: NotRequired[UsageMetadata]
    modelVersion: NotRequired[str]
    responseId: NotRequired[str]


class TotalTokens(TypedDict):
    """How long the conversation is for the model."""

    totalTokens: int


class CandidateWriter:
    """From events to chunks of the answer. A call is written whole, when it is complete."""

    def __init__(self, response_id: str, model: str) -> None:
        self._id = response_id
        self._model = model
        self._calls: dict[int, dict[int, list[chat.ToolCallDelta]]] = {}  # by choice and the call's index
        self._images = False
        self._cut: dict[int, str] = {}  # by choice: what of an image's prompt was not read
        self._ends: list[Candidate] = []  # kept for the last chunk, which has the usage

    def write(self, event: AnswerEvent) -> Iterator[GenerateAnswer]:
        """Yield the chunks that this event becomes."""
        match event:
            case chat.TextDelta():
                yield self._chunk(event.choice, {"text": event.text})
            case chat.ReasoningDelta():
                yield self._chunk(event.choice, {"text": event.text, "thought": True, "thoughtSignature": SIGNATURE})
            case ImageDelta():
                self._images = True
                if event.truncated:
                    self._cut[event.choice] = event.truncated
                yield self._chunk(event.choice, {"inlineData": {"mimeType": event.media_type, "data": event.data}})
            case chat.ToolCallDelta():
                self._calls.setdefault(event.choice, {}).setdefault(event.index, []).append(event)
            case chat.ChoiceFinished():
                for deltas in self._calls.get(event.choice, {}).values():
                    yield self._chunk(event.choice, _call(deltas))
                end: Candidate = {"index": event.choice, "finishReason": REASONS[event.reason]}
                if event.choice in self._cut:
                    end["finishMessage"] = self._cut[event.choice]
                self._ends.append(end)
            case chat.ChatFinished():
                yield {
                    "candidates": self._ends,
                    "usageMetadata": self._usage(event.usage),
                    "modelVersion": self._model,
                    "responseId": self._id,
                }

    def _chunk(self, choice: int, part: AnswerPart) -> GenerateAnswer:
        return {
            "candidates": [{"index": choice, "content": {"role": "model", "parts": [part]}}],
            "modelVersion": self._model,
            "responseId": self._id,
        }

    def _usage(self, usage: chat.ChatUsage) -> UsageMetadata:
        """Return the counts: a model's thoughts are counted apart here."""
        said = usage.completion_tokens - usage.reasoning_tokens
        counts: UsageMetadata = {
            "promptTokenCount": usage.prompt_tokens,
            "candidatesTokenCount": said,
            "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        }
        if usage.reasoning_tokens:
            counts["thoughtsTokenCount"] = usage.reasoning_tokens
        if usage.cached_tokens:
            counts["cachedContentTokenCount"] = usage.cached_tokens
        counts["candidatesTokensDetails"] = [{"modality": "IMAGE" if self._images else "TEXT", "tokenCount": said}]
        return counts


async def collect(chunks: AsyncIterator[GenerateAnswer]) -> GenerateAnswer:
    """Return the answer that a stream makes: each candidate once, with its texts joined."""
    candidates: dict[int, Candidate] = {}
    last: GenerateAnswer = {}
    async for chunk in chunks:
        last = chunk
        for piece in chunk["candidates"]:
            begun: Candidate = {"index": piece["index"], "content": {"role": "model", "parts": []}}
            candidate = candidates.setdefault(piece["index"], begun)
            if "content" in piece:
                _extend(candidate["content"]["parts"], piece["content"]["parts"])
            else:
                candidate.update(piece)
    return {**last, "candidates": [candidate for _, candidate in sorted(candidates.items())]}


def _call(deltas: Sequence[chat.ToolCallDelta]) -> AnswerPart:
    args = read_arguments("".join(delta.arguments for delta in deltas))
    call: CandidateCall = {"id": deltas[0].call_id or "", "name": deltas[0].name or "", "args": args}
    return {"functionCall": call, "thoughtSignature": SIGNATURE}


def _extend(parts: list[AnswerPart], more: Sequence[AnswerPart]) -> None:
    """Add parts. A text is joined with the text before it, if both are thoughts or neither is."""
    for part in more:
        last: AnswerPart = parts[-1] if parts else {}
        if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
            parts[-1] = {**last, "text": last["text"] + part["text"]}
        else:
            parts.append(part)
