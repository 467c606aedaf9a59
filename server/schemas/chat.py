"""The body of POST /v1/chat/completions, as OpenAI's SDKs send it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from server.schemas.chat_messages import FUNCTION_NAME, BoundedText, LenientModel, Message
from server.schemas.extra_fields import NO_EFFECT as NO_EFFECT_OF_HOSTING
from server.schemas.extra_fields import (
    HostedFields,
    MaxTokens,
    MinP,
    OrEmpty,
    OrFalse,
    OrNone,
    RepetitionPenalty,
    TemplateOptions,
    ThinkingBudget,
    TopK,
)

TOOLS = ("function", "custom")
MAX_TOOLS = 256  # of the MCP servers of an agent; their grammar takes a second or two, and fails near 500


class FunctionDefinition(LenientModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunction(LenientModel):
    type: Literal["function"]
    function: FunctionDefinition


class FreeText(LenientModel):
    """Any text."""

    type: Literal["text"]


class GrammarText(LenientModel):
    """A grammar of texts. Local models can't write anything else."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=100_000)]


class TextByGrammar(LenientModel):
    type: Literal["grammar"]
    grammar: GrammarText


class CustomDefinition(LenientModel):
    """A tool that takes a text instead of JSON."""

    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    format: Annotated[FreeText | TextByGrammar, Field(discriminator="type")] | None = None


class ChatCustomTool(LenientModel):
    type: Literal["custom"]
    custom: CustomDefinition


ChatTool = Annotated[ChatFunction | ChatCustomTool, Field(discriminator="type")]


class ToolName(LenientModel):
    name: str


class ChosenFunction(LenientModel):
    type: Literal["function"]
    function: ToolName


class ChosenCustomTool(LenientModel):
    type: Literal["custom"]
    custom: ToolName


ChosenTool = Annotated[ChosenFunction | ChosenCustomTool, Field(discriminator="type")]


class ChatAllowedTools(LenientModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Field(min_length=1)]


class AllowedChoice(LenientModel):
    """The model may choose among some of the tools only."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowedTools


def _string_or_object(value: object) -> str | None:
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict | BaseModel) else None


STRING_OR_OBJECT = Discriminator(
    _string_or_object, custom_error_type="string_or_object", custom_error_message="a string or an object"
)
Mode = Annotated[Literal["none", "auto", "required"], Tag("string")]
ToolChoice = Annotated[
    Mode
    | Annotated[
        Annotated[ChosenFunction | ChosenCustomTool | AllowedChoice, Field(discriminator="type")], Tag("object")
    ],
    STRING_OR_OBJECT,
]


MAX_STOPS = 4
MAX_CHOICES = 128
# Accepted, and named in a response header: the answer is the same without them
NO_EFFECT = tuple(sorted(("metadata", "prediction", "store", *NO_EFFECT_OF_HOSTING)))
UNSUPPORTED = {  # field -> what to do instead
    "audio": "this server answers in text",
    "function_call": "use 'tool_choice'",
    "functions": "use 'tools'",
    "moderation": "the server's own policy checks each chat; /v1/moderations scores a text",
    "web_search_options": "this server does not search the web",
    # of other servers; they would change the sampling
    "best_of": "use 'n'",
    "chat_template": "the model's own is used",
    "continue_final_message": "leave it out",
    "grammar": "use 'response_format'",
    "guided_choice": "use 'response_format'",
    "guided_grammar": "use 'response_format'",
    "guided_json": "use 'response_format'",
    "guided_regex": "use 'response_format'",
    "structured_outputs": "use 'response_format'",
}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ChatStreamOptions(LenientModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # nothing is added to events


class TextFormat(LenientModel):
    type: Literal["text"]


class JsonObjectFormat(LenientModel):
    type: Literal["json_object"]


class NamedSchema(LenientModel):
    """A JSON schema. Answers always match it; with `strict` the schema itself must follow OpenAI's rules too."""

    name: str = "answer"  # no model reads it
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class JsonSchemaFormat(LenientModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Stop = Annotated[str, Field(min_length=1)]
StopList = Annotated[list[Stop], Field(max_length=MAX_STOPS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


def _tier(size: object) -> object:
    """Return the name of a tier as it is here: Google's documents have had three names for half of 1K."""
    if not isinstance(size, str):
        return size
    name = size.strip().upper().removesuffix("PX")
    return {"0.5K": "512", "1024": "1K", "2048": "2K", "4096": "4K"}.get(name, name)


TierName = Annotated[Literal["512", "1K", "2K", "4K"], BeforeValidator(_tier)]


class ImageConfig(LenientModel):
    """How an image is drawn. The resolution chooses the model of the family; "512" is half of 1K."""

    aspect_ratio: str | None = None
    image_size: TierName | None = None


def _reasoning(value: object) -> object:
    """Return what is written short as the object that it is short for."""
    if isinstance(value, bool):
        return {"enabled": value}
    return {"effort": value} if isinstance(value, str) else value


class ChatReasoning(LenientModel):
    """How routers and the Responses API write `reasoning_effort`, or whether the model thinks first."""

    effort: str | None = None
    enabled: bool | None = None


class ChatBody(HostedFields):
    """Every supported field. Those after `image_config` are accepted and have no effect. An answer with images takes
    the options of the image routes, too."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    stop: Annotated[StopList, BeforeValidator(_as_list, json_schema_input_type=Stop | StopList)] = Field(
        default_factory=list
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    stream: bool = False
    stream_options: ChatStreamOptions | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None

    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    min_tokens: Annotated[int, Field(ge=0)] = 0  # this and the next two are vLLM's, which programs that measure send
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] = Field(default_factory=list)
    reasoning_effort: str | None = None  # this and `verbosity` are for templates that know them
    verbosity: str | None = None
    thinking_token_budget: ThinkingBudget = None  # tokens of thoughts, as vLLM calls it
    reasoning: Annotated[ChatReasoning, BeforeValidator(_reasoning)] = Field(default_factory=ChatReasoning)
    enable_thinking: bool | None = None  # this and the last are other names for what templates know
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)
    documents: list[dict[str, Any]] | None = None  # for templates that show texts to answer from
    modalities: list[Literal["text", "image"]] = Field(default_factory=list)  # with "image", the answer has an image
    image_config: ImageConfig | None = None
    store: Annotated[bool, OrFalse] = False
    metadata: Annotated[dict[str, str], OrEmpty] = Field(default_factory=dict)
    prediction: Annotated[dict[str, Any] | None, OrNone] = None
