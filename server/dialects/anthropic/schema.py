"""The body of POST /v1/messages, as Anthropic's SDKs send it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from server.schemas.chat import MAX_TOOLS
from server.schemas.chat_messages import FUNCTION_NAME, TEXT_OR_PARTS, BoundedText, LenientModel, Text
from server.schemas.extra_fields import Label, OrNone

MAX_STOPS = 16
UNSUPPORTED = {  # field -> what to do instead
    "container": "it runs no code; leave it out",
    "mcp_servers": "it calls no MCP servers; declare their tools in 'tools' and call them yourself",
    "prefill": "the answer begins where the model begins it; leave it out",
}


class TextBlock(LenientModel):
    """Text. Its `cache_control` and `citations` change nothing here."""

    type: Literal["text"]
    text: BoundedText


class Base64Source(LenientModel):
    """The bytes of an image. `media_type` is not believed: the bytes are looked at."""

    type: Literal["base64"]
    media_type: Annotated[str, BeforeValidator(str)] = "image/png"
    data: Annotated[str, Field(min_length=1)]


class UrlSource(LenientModel):
    """An https URL, or the URL of one of this server's own images."""

    type: Literal["url"]
    url: Annotated[str, Field(min_length=1)]


class ImageBlock(LenientModel):
    """An image, for models that see."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class TextSource(LenientModel):
    """A document that is plain text."""

    type: Literal["text"]
    data: BoundedText


class ContentSource(LenientModel):
    """A document whose text is in blocks."""

    type: Literal["content"]
    content: Annotated[Text | Annotated[list[TextBlock], Tag("parts")], TEXT_OR_PARTS]


class DocumentBlock(LenientModel):
    """A document as text. Files and PDFs can't be read here."""

    type: Literal["document"]
    source: Annotated[TextSource | ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None


class ThinkingBlock(LenientModel):
    """Thoughts of an earlier round, for models whose templates show them. What is redacted can't be read."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: BoundedText = ""


class ToolUseBlock(LenientModel):
    """A call that the model made in an earlier round."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]


ResultPart = Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]
ResultContent = Annotated[Text | Annotated[list[ResultPart], Tag("parts")], TEXT_OR_PARTS]


class ToolResultBlock(LenientModel):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1)]
    content: ResultContent = ""
    is_error: bool = False


UserBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]
SystemBlocks = Annotated[Text | Annotated[list[TextBlock], Tag("parts")], TEXT_OR_PARTS]


class UserTurn(LenientModel):
    role: Literal["user"]
    content: Annotated[Text | Annotated[list[UserBlock], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]


class AssistantTurn(LenientModel):
    role: Literal["assistant"]
    content: Annotated[Text | Annotated[list[AssistantBlock], Tag("parts")], TEXT_OR_PARTS]


class SystemTurn(LenientModel):
    """Instructions between messages."""

    role: Literal["system"]
    content: SystemBlocks


class Tool(LenientModel):
    """A function of the client's."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class AnyChoice(LenientModel):
    """Whether the model may, must or must not call tools."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class NamedChoice(LenientModel):
    """The tool that the model must call."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class Thinking(LenientModel):
    """Whether the model thinks first, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class JsonOutput(LenientModel):
    """An answer that matches a JSON schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(LenientModel):
    """The form of the answer, and how much work goes into it."""

    effort: str | None = None
    format: JsonOutput | None = None


class ThinkingTurns(LenientModel):
    """So many of the newest answers keep their thoughts."""

    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1)]


class ClearThinking(LenientModel):
    """Thoughts of older answers are left out."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[Literal["all"] | ThinkingTurns | None, OrNone] = ThinkingTurns(type="thinking_turns", value=1)


class ContextManagement(LenientModel):
    """What is left out of a long conversation. Results of tools can't be."""

    edits: list[ClearThinking] = Field(default_factory=list)


class Metadata(LenientModel):
    """The metadata of a request: whose it is."""

    user_id: Label = None


def _object_or_none(value: object) -> object:
    return value if isinstance(value, Mapping) else None


class CountBody(LenientModel):
    """POST /v1/messages/count_tokens."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[
        list[Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]],
        Field(min_length=1),
    ]
    system: SystemBlocks = ""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Annotated[AnyChoice | NamedChoice, Field(discriminator="type")] | None = None
    thinking: Thinking | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list
    )
    stream: bool = False
    metadata: Annotated[Metadata | None, BeforeValidator(_object_or_none)] = None
