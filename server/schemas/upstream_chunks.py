"""The chunks of a chat's stream, as other servers send them: what they agree on, and nothing that one could lack."""

from typing import Annotated

from pydantic import Field

from server.schemas.chat_messages import Shape


class FunctionPiece(Shape):
    """A function's name, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(Shape):
    """More of a tool call."""

    index: int = 0
    id: str | None = None
    function: FunctionPiece = Field(default_factory=FunctionPiece)


class Delta(Shape):
    """More of what is said. What a model thinks has two names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallPiece] | None = None


class TopLogprob(Shape):
    """A token that could have come."""

    token: str
    logprob: float
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None


class Logprob(TopLogprob):
    """One that came."""

    top_logprobs: list[TopLogprob] = Field(default_factory=list)


class Logprobs(Shape):
    """Those of a delta's text."""

    content: list[Logprob] | None = None


class ChoicePiece(Shape):
    """More of a choice."""

    delta: Delta = Field(default_factory=Delta)
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class TokenDetails(Shape):
    """What some of the tokens were for."""

    reasoning_tokens: int | None = None


class Usage(Shape):
    """Token counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: TokenDetails | None = None


class Chunk(Shape):
    """One event of the stream."""

    choices: list[ChoicePiece] = Field(default_factory=list)
    usage: Usage | None = None
