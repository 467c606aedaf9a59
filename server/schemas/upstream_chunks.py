"""The chunks of a chat's stream from another server. Only fields that servers agree on; each may be absent."""

from typing import Annotated

from pydantic import Field

from server.schemas.chat_messages import LenientModel


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
