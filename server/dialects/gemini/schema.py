"""The body of generateContent, as Google's SDKs send it: names in camelCase, or as protobuf has them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, AliasGenerator, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from server.schemas.chat import TierName
from server.schemas.chat_messages import FUNCTION_NAME, BoundedText, LenientModel

MAX_STOPS = 16
URL_SAFE = str.maketrans("-_", "+/")
UNSUPPORTED = {  # field -> what to do instead
    "cachedContent": "nothing is kept between calls; send the whole conversation",
    "cached_content": "nothing is kept between calls; send the whole conversation",
}


def _in_capitals(name: object) -> object:
    return name.upper() if isinstance(name, str) else name


def _media_type(text: object) -> object:
    """Return a media type without its parameters."""
    return text.partition(";")[0].strip().lower() or None if isinstance(text, str) else text


Modality = Annotated[Literal["TEXT", "IMAGE", "MODALITY_UNSPECIFIED"], BeforeValidator(_in_capitals)]
MediaType = Annotated[
    Literal["text/plain", "application/json"] | None, BeforeValidator(_media_type, json_schema_input_type=str | None)
]


def _either_case(name: str) -> AliasChoices:
    return AliasChoices(to_camel(name), name)


class GeminiModel(LenientModel):
    """A part of the body. Unknown keys are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        allow_inf_nan=False,
        alias_generator=AliasGenerator(validation_alias=_either_case, serialization_alias=to_camel),
        populate_by_name=True,
    )


def _standard_base64(data: str) -> str:
    """Return base64 in the standard alphabet, padded. protobuf's JSON takes either alphabet, padded or not; Google's
    SDK sends the URL-safe one."""
    return data.translate(URL_SAFE).rstrip("=") + "=" * (-len(data.rstrip("=")) % 4)


class Blob(GeminiModel):
    """The bytes of an image, as base64. The type is not believed: the bytes are looked at."""

    mime_type: str = "image/png"
    data: Annotated[str, Field(min_length=1), AfterValidator(_standard_base64)]


class FileData(GeminiModel):
    """An image by https URL, or by the URL of one of this server's own."""

    file_uri: Annotated[str, Field(min_length=1)]


class GeminiCall(GeminiModel):
    """A call that the model made in an earlier round."""

    id: str | None = None
    name: Annotated[str, Field(min_length=1)]
    args: dict[str, Any] = Field(default_factory=dict)


class CallResultPart(GeminiModel):
    """An image that a function returned."""

    inline_data: Blob | None = None
    file_data: FileData | None = None
    text: SkipJsonSchema[BoundedText | None] = None  # in the place of what can't be read


class GeminiCallResult(GeminiModel):
    """The result of a call."""

    id: str | None = None
    name: Annotated[str, Field(min_length=1)]
    response: dict[str, Any] = Field(default_factory=dict)
    parts: list[CallResultPart] = Field(default_factory=list)


class GeminiPart(GeminiModel):
    """One of these. A part with `thought` is a thought of an earlier round."""

    text: BoundedText | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: GeminiCall | None = None
    function_response: GeminiCallResult | None = None
    thought: bool = False


class Content(GeminiModel):
    """One message."""

    role: Literal["user", "model", "function", "system"] = "user"
    parts: list[GeminiPart] = Field(default_factory=list)


class FunctionDeclaration(GeminiModel):
    """A function of the client's. `parameters` is an OpenAPI schema, `parametersJsonSchema` a JSON schema."""

    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class GeminiTool(GeminiModel):
    """Functions of the client's."""

    function_declarations: list[FunctionDeclaration] = Field(default_factory=list)


Mode = Annotated[Literal["AUTO", "ANY", "NONE", "VALIDATED", "MODE_UNSPECIFIED"], BeforeValidator(_in_capitals)]


class FunctionCallingConfig(GeminiModel):
    """Whether the model may, must or must not call functions."""

    mode: Mode = "AUTO"
    allowed_function_names: list[str] = Field(default_factory=list)


class ToolConfig(GeminiModel):
    """How tools are called."""

    function_calling_config: FunctionCallingConfig | None = None


class GeminiImageConfig(GeminiModel):
    """How an image is drawn. The size chooses the model of the family."""

    aspect_ratio: str | None = None
    image_size: TierName | None = None


class ThinkingConfig(GeminiModel):
    """Whether the model thinks first, and for how many tokens: a budget of 0 is no, and -1 leaves it to the model."""

    thinking_budget: int | None = None
    thinking_level: str | None = None


class GenerationConfig(GeminiModel):
    """How the answer is made."""

    candidate_count: Annotated[int, Field(ge=1)] = 1
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[float, Field(ge=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: int | None = None
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list
    )
    response_mime_type: MediaType = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_modalities: list[Modality] = Field(default_factory=list)
    image_config: GeminiImageConfig | None = None
    thinking_config: ThinkingConfig | None = None


class GenerateBody(GeminiModel):
    """POST /v1beta/models/{model}:generateContent, and :streamGenerateContent."""

    contents: Annotated[list[Content], Field(min_length=1)]
    system_instruction: Content | None = None
    tools: list[GeminiTool] = Field(default_factory=list)
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig = Field(default_factory=GenerationConfig)


class CountTokensBody(GeminiModel):
    """POST /v1beta/models/{model}:countTokens: the messages, or a whole request."""

    contents: list[Content] = Field(default_factory=list)
    generate_content_request: GenerateBody | None = None
