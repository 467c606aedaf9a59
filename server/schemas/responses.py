"""The body of POST /v1/responses, as OpenAI's SDKs send it."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from server.schemas.chat import MAX_TOOLS
from server.schemas.chat_messages import TEXT_OR_PARTS, BoundedText, LenientModel, Text
from server.schemas.extra_fields import HostedFields, MinP, RepetitionPenalty, TemplateOptions, ThinkingBudget, TopK
from server.schemas.response_items import Item
from server.schemas.response_tools import Tool, ToolChoice

MAX_ITEMS = 4096
UNSUPPORTED = {  # field -> what to do instead
    "prompt": "send 'instructions' and 'input'",
    "moderation": "the operator's policy holds for every request",
}
Include = Literal[
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class PlainText(LenientModel):
    """Any text."""

    type: Literal["text"]


class JsonObject(LenientModel):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(LenientModel):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    name: str = "answer"  # no model reads it
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextOptions(LenientModel):
    """The format of the answer's text."""

    format: Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")] | None = None
    verbosity: str | None = None


class Reasoning(LenientModel):
    """How much a model thinks, for templates that know it. Thoughts are shown whole, never as a summary."""

    effort: str | None = None
    summary: str | None = None


class StreamOptions(LenientModel):
    """Options of a stream."""

    include_obfuscation: bool | None = None  # accepted; events are never padded


def _as_text(value: object) -> object:
    """Return a number or a truth value as the text that is kept."""
    return json.dumps(value) if isinstance(value, int | float) else value


MetaKey = Annotated[str, Field(max_length=64)]
MetaValue = Annotated[str, Field(max_length=512), BeforeValidator(_as_text, json_schema_input_type=str | float | bool)]


Metadata = Annotated[dict[MetaKey, MetaValue], Field(max_length=16)]


class ConversationRef(LenientModel):
    """A conversation, by its id."""

    id: Annotated[str, Field(min_length=1, max_length=60)]


def _named(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


def _read_flag(value: object) -> object:
    """Return the truth value that a text is, as untyped clients send it."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(_read_flag)]
ConversationId = Annotated[ConversationRef, BeforeValidator(_named, json_schema_input_type=str | ConversationRef)]


ResponseId = Annotated[str, Field(min_length=1)]


class ResponseBody(HostedFields):
    """Every field that changes the answer, and those that are only repeated in it."""

    model: str | None = None
    input: Annotated[Text | Annotated[list[Item], Field(max_length=MAX_ITEMS), Tag("parts")], TEXT_OR_PARTS]
    instructions: BoundedText | None = None
    previous_response_id: ResponseId | None = None
    conversation: ConversationId | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: Reasoning | None = None
    thinking_token_budget: ThinkingBudget = None
    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)
    truncation: Literal["auto", "disabled"] = "disabled"
    include: list[Include] = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)
    store: Flag = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False


class CompactBody(HostedFields):
    """POST /v1/responses/compact."""

    model: Annotated[str, Field(min_length=1)]
    input: Annotated[Text | Annotated[list[Item], Field(max_length=MAX_ITEMS), Tag("parts")], TEXT_OR_PARTS] = Field(
        default_factory=list
    )
    instructions: BoundedText | None = None
    previous_response_id: ResponseId | None = None
