"""The answers of /v1/responses: the response, its items, and pages of them."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from pipelines.protocol.images import Background
from pipelines.protocol.tiers import ServiceTier
from server.schemas.errors import ErrorDetail
from server.schemas.hosted_items import ShellCallType, ShellOutputType, UnreadType
from server.schemas.response_object import ResponseStatus
from server.schemas.response_tools import AllowedTools, HostedTool, NamedCustomTool, NamedFunction, Tool
from server.schemas.responses import JsonObject, JsonSchema, PlainText

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TopTokenLogprob(TypedDict):
    """A token with its log-probability, as text and as UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopTokenLogprob):
    """A token of the answer, with the most likely tokens at its position."""

    top_logprobs: list[TopTokenLogprob]


class OutputTextPart(TypedDict):
    """Text that the model wrote. `logprobs` are filled if the request includes them."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class OutputMessage(TypedDict):
    """A message of the model."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextPart]


class FunctionCall(TypedDict):
    """A call of one of the request's functions. `arguments` is JSON text as the model wrote it."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: NotRequired[str]


class CustomToolCall(TypedDict):
    """A call of one of the request's custom tools. `input` is text, by the tool's grammar if it has one."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: NotRequired[str]


class ReasoningPart(TypedDict):
    """Text that the model wrote before its answer."""

    type: str | None
    text: str | None


class ReasoningOutput(TypedDict):
    """The reasoning before an answer."""

    id: str
    type: Literal["reasoning"]
    status: NotRequired[ItemStatus]
    summary: list[dict[str, Any]]
    content: list[ReasoningPart]


class ImageCall(TypedDict):
    """A call of the image tool. A completed one has the image in `result`, as base64; null if its file is deleted.
    A failed one has the error."""

    id: str
    type: Literal["image_generation_call"]
    status: Literal["in_progress", "completed", "failed"]
    result: str | None
    revised_prompt: NotRequired[str]
    size: NotRequired[str]
    quality: NotRequired[str]
    background: NotRequired[Background]
    output_format: NotRequired[str]
    action: NotRequired[Literal["generate", "edit"]]
    url: NotRequired[str]
    truncated: NotRequired[str]
    error: NotRequired[ErrorDetail]


OutputItem = Annotated[
    OutputMessage | FunctionCall | CustomToolCall | ReasoningOutput | ImageCall, Field(discriminator="type")
]


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

    format: Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")]
    verbosity: str


class ConversationName(TypedDict):
    """The conversation that the response belongs to."""

    id: str


class ResponseObject(TypedDict):
    """A response. Most fields repeat the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None
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
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | NamedCustomTool | HostedTool | AllowedTools
    tools: list[Tool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class DeletedResponse(TypedDict):
    """The response and its items are gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokenCount(TypedDict):
    """Tokens of the whole input: earlier rounds, instructions and tools among them."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class SentText(TypedDict):
    """Text of the request."""

    type: Literal["input_text"]
    text: str


class SentImage(TypedDict):
    """An image of the request, as it was sent or as a data URI; null if its file is deleted."""

    type: Literal["input_image"]
    image_url: str | None
    detail: str


class SentRefusal(TypedDict):
    """A refusal of an earlier round, sent back."""

    type: Literal["refusal"]
    refusal: str


class SentMessage(TypedDict):
    """A message of the request, or one of an earlier response that the request named."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Annotated[SentText | SentImage | OutputTextPart | SentRefusal, Field(discriminator="type")]]


class FunctionOutput(TypedDict):
    """The result of the caller's function or custom tool."""

    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    status: ItemStatus
    call_id: str
    output: str | list[Annotated[SentText | SentImage, Field(discriminator="type")]]


class Compaction(TypedDict):
    """A summary of earlier items, to be sent back in their place."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class OtherToolItem(TypedDict):
    """An item of a tool that this server does not run, with the fields that were sent."""

    id: str
    type: Literal["code_interpreter_call", "file_search_call", "mcp_call", ShellCallType, ShellOutputType, UnreadType]
    status: NotRequired[str]


InputItem = Annotated[
    SentMessage
    | FunctionCall
    | CustomToolCall
    | FunctionOutput
    | ReasoningOutput
    | ImageCall
    | Compaction
    | OtherToolItem,
    Field(discriminator="type"),
]


class CompactedResponse(TypedDict):
    """The user's messages, the newest image, and a summary of all the rest: the `input` of the next response."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[InputItem]
    usage: ResponseUsage


class InputItemList(TypedDict):
    """A page of a response's input items. Continue with `after` = `last_id` while `has_more` is true."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
