"""The tools of a chat completion: functions and custom tools of the client, and which of them may be called."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from server.schemas.chat_messages import FUNCTION_NAME, BoundedText, LenientModel

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
