"""The answers of POST /v1/chat/completions: one completion, or the chunks of a stream."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from pipelines.protocol.chat import ChatUsage, TokenLogprob, TopToken
from server.schemas.chat_messages import LenientModel

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class CompletionFunction(TypedDict):
    """`arguments` is JSON text as the model wrote it; it is cut off if the answer ran out of tokens."""

    name: str
    arguments: str


class CompletionCustomInput(TypedDict):
    """`input` is text, by the tool's grammar if it has one."""

    name: str
    input: str


class CompletionCustomCall(TypedDict):
    """A call of one of the request's custom tools."""

    id: str
    type: Literal["custom"]
    custom: CompletionCustomInput


class CompletionToolCall(TypedDict):
    """A call of one of the request's functions."""

    id: str
    type: Literal["function"]
    function: CompletionFunction


class PictureUrl(TypedDict):
    """A data URI."""

    url: str


class CompletionImage(TypedDict):
    """An image of the answer. `truncated`: the part of its prompt that was not read, as in `x-darkroom-truncated`."""

    index: int
    type: Literal["image_url"]
    image_url: PictureUrl
    truncated: NotRequired[str]


class CompletionMessage(TypedDict):
    """`content` is null when the message only calls tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[dict[str, Any]]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[Annotated[CompletionToolCall | CompletionCustomCall, Field(discriminator="type")]]]
    images: NotRequired[list[CompletionImage]]


class CompletionTopLogprob(TypedDict):
    """A token with its log-probability, as text and as UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int] | None


class CompletionTokenLogprob(CompletionTopLogprob):
    """A token of the answer, with the most likely tokens at its position."""

    top_logprobs: list[CompletionTopLogprob]


class CompletionLogprobs(TypedDict):
    """One entry a token."""

    content: list[CompletionTokenLogprob] | None
    refusal: list[CompletionTokenLogprob] | None


class CompletionChoice(TypedDict):
    """One of the `n` answers."""

    index: int
    message: CompletionMessage
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class PromptTokensDetails(TypedDict):
    """What the prompt's tokens were: `cached_tokens` had been computed for an earlier call."""

    cached_tokens: int
    audio_tokens: int


class CompletionTokensDetails(TypedDict):
    """The uses of the answer's tokens."""

    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(TypedDict):
    """Token counts of the call, all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChatCompletion(TypedDict):
    """The answer without `stream`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class FunctionDelta(TypedDict):
    """The next part of the arguments. The name comes with the first part."""

    name: NotRequired[str]
    arguments: str


class CustomDelta(TypedDict):
    """The next part of the input. The name comes with the first part."""

    name: NotRequired[str]
    input: str


class ToolCallDelta(TypedDict):
    """The next part of a tool call. `id` and `type` come with the first part."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[FunctionDelta]
    custom: NotRequired[CustomDelta]


class CompletionDelta(TypedDict):
    """The new part of a choice. The first delta of a choice has its role, the last is empty."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    refusal: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]
    images: NotRequired[list[CompletionImage]]


class ChunkChoice(TypedDict):
    """`finish_reason` is null until the last chunk of the choice."""

    index: int
    delta: CompletionDelta
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(TypedDict):
    """One event of a stream. With `include_usage`, the last chunk has the usage and no choices; before it is null."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: NotRequired[CompletionUsage | None]


def usage_json(usage: ChatUsage) -> CompletionUsage:
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


def logprobs_json(tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
    """Return the log-probabilities of tokens, with their most likely alternatives."""
    return {
        "content": [{**_token(token), "top_logprobs": [_token(top) for top in token.top]} for token in tokens],
        "refusal": None,
    }


def _token(token: TokenLogprob | TopToken) -> CompletionTopLogprob:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


class FunctionChunk(LenientModel):
    name: str | None = None
    arguments: str | None = None


class ToolCallChunk(LenientModel):
    """A piece of a call, as `server.flows.chat.upstream_repair` leaves it."""

    index: int = 0
    id: str | None = None
    function: FunctionChunk = Field(default_factory=FunctionChunk)


class Delta(LenientModel):
    """Servers use `reasoning_content` or `reasoning` for the same text."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallChunk] | None = None


class TopLogprob(LenientModel):
    """A candidate token."""

    token: str
    logprob: float
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None


class Logprob(TopLogprob):
    """The sampled token, with the most likely candidates."""

    top_logprobs: list[TopLogprob] = Field(default_factory=list)


class Logprobs(LenientModel):
    content: list[Logprob] | None = None


class ChoiceChunk(LenientModel):
    delta: Delta = Field(default_factory=Delta)
    index: int = 0
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # of vLLM: the stop string or token


class TokenDetails(LenientModel):
    reasoning_tokens: int | None = None


class PromptDetails(LenientModel):
    cached_tokens: int | None = None


class Usage(LenientModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: TokenDetails | None = None
    prompt_tokens_details: PromptDetails | None = None


class Chunk(LenientModel):
    choices: list[ChoiceChunk] = Field(default_factory=list)
    usage: Usage | None = None
