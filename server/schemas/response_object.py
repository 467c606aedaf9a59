"""The response object and the other answers of /v1/responses that are no items, and how they are built."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, PlainSerializer
from typing_extensions import TypedDict

from pipelines.protocol.chat import ChatUsage
from pipelines.protocol.tiers import ServiceTier
from server.schemas.response_answers import InputItem, OutputItem
from server.schemas.response_tools import AllowedTools, HostedTool, NamedCustomTool, NamedFunction, Tool, echo_tool
from server.schemas.responses import JsonObject, JsonSchema, PlainText, ResponseBody

Json = dict[str, Any]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ENDED: frozenset[ResponseStatus] = frozenset({"completed", "incomplete", "failed", "cancelled"})
Choice = NamedFunction | NamedCustomTool | HostedTool | AllowedTools


def _dumped(model: Any) -> PlainSerializer:
    """Describe JSON that repeats a part of the request by the model that it is dumped from."""
    return PlainSerializer(dict, return_type=model)


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(TypedDict):
    """Nothing is cached between calls, so these are zero."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """Tokens of the reasoning are counted as output too."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens that the chat model read and wrote. Images are not counted in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ReasoningSettings(TypedDict):
    """Reasoning can't be configured here."""

    effort: str | None
    summary: None


class TextSettings(TypedDict):
    """The format that the answer's text has."""

    format: Annotated[Json, _dumped(Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")])]
    verbosity: str


class ConversationName(TypedDict):
    """The conversation that the response belongs to."""

    id: str


class ResponseOutcome(TypedDict, total=False):
    """The fields that are known only at the end."""

    completed_at: int | None
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None


class ResponseEcho(TypedDict):
    """The fields of the request that every object of the response repeats."""

    background: bool
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    conversation: NotRequired[ConversationName | None]  # not in responses of earlier versions
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: ServiceTier
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: Literal["none", "auto", "required"] | Annotated[Json, _dumped(Choice)]
    tools: list[Annotated[Json, _dumped(Tool)]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class _Response(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None


class ResponseObject(_Response, ResponseEcho):
    """A response. Most fields repeat the request."""


class DeletedResponse(TypedDict):
    """The response and its items are gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokenCount(TypedDict):
    """Tokens of the whole input: earlier rounds, instructions and tools among them."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactedResponse(TypedDict):
    """The user's messages, the newest image, and a summary of all the rest: the `input` of the next response."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[InputItem]
    usage: ResponseUsage


def response_object(
    response_id: str,
    created_at: int,
    echo: ResponseEcho,
    status: ResponseStatus,
    output: list[OutputItem],
    ended: ResponseOutcome | None = None,
) -> ResponseObject:
    """Build the response object."""
    end = ended or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": end.get("completed_at"),
        "status": status,
        "error": end.get("error"),
        "incomplete_details": end.get("incomplete_details"),
        "output": list(output),
        "usage": end.get("usage"),
        **echo,
    }


def usage_object(usage: ChatUsage) -> ResponseUsage:
    """Return the tokens of all turns of the chat model. Images are not counted."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def echo(body: ResponseBody, model: str, defaults: Mapping[str, float], tier: ServiceTier) -> ResponseEcho:
    """Return the fields of the request that every object of the response repeats. `defaults` are the model's, of the
    sampling that the request leaves out. `tier` is the one in which it is served."""
    choice = body.tool_choice
    used = body.model_copy(update={name: defaults[name] for name in defaults.keys() - body.model_fields_set})
    text_format = body.text.format.model_dump(by_alias=True) if body.text.format else {"type": "text"}
    return {
        "temperature": used.temperature,
        "top_p": used.top_p,
        "presence_penalty": used.presence_penalty,
        "frequency_penalty": used.frequency_penalty,
        "background": body.background,
        "conversation": {"id": body.conversation.id} if body.conversation else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": tier,
        "store": body.store,
        "text": {"format": text_format, "verbosity": body.text.verbosity or "medium"},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
        "tools": [echo_tool(tool) for tool in body.tools],
        "top_logprobs": body.top_logprobs,
        "truncation": body.truncation,
        "user": body.user,
    }
