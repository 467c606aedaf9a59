"""The answers of generateContent: candidates, and in a stream their parts as they come."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

GeminiFinish = Literal["STOP", "MAX_TOKENS", "SAFETY", "IMAGE_SAFETY"]


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
    """One of these. `thought`: the text is a thought before the answer."""

    text: NotRequired[str]
    thought: NotRequired[bool]
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

    blockReason: Literal["SAFETY", "IMAGE_SAFETY"]
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


class GeminiCard(TypedDict):
    """A model, as that protocol lists it."""

    name: str
    version: str
    displayName: str
    description: str
    supportedGenerationMethods: list[str]


class GeminiCards(TypedDict):
    """A page of models."""

    models: list[GeminiCard]
    nextPageToken: NotRequired[str]


class RpcStatus(TypedDict):
    """google.rpc.Status."""

    code: int
    message: str
    status: str
    details: list[dict[str, Any]]


class GeminiError(TypedDict):
    """The body of every error."""

    error: RpcStatus
