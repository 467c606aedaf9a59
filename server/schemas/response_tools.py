"""The tools of a response: functions and custom tools of the client, namespaces of them, and the image tool."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from pipelines.protocol.images import LongPrompt
from server.errors import BadRequest
from server.schemas.chat import MAX_TOOLS, STRING_OR_OBJECT, FreeText, GrammarText, Mode
from server.schemas.chat_messages import FUNCTION_NAME, BoundedText, LenientModel
from server.schemas.extra_fields import OrNone
from server.schemas.images import OutputFormat, Seed, SizeName, Word

TOOLS = ("function", "custom", "namespace", "image_generation")
Values = dict[str, Any]
HOSTED = {  # tools of the hosted service -> what this server does not do
    "web_search": "does not search the web",
    "file_search": "stores no files",
    "code_interpreter": "runs no code",
    "mcp": "calls no MCP servers",
    "computer": "drives no computer",
    "shell": "runs no commands",
    "local_shell": "runs no commands",
    "apply_patch": "edits no files",
    "tool_search": "does not search tools: send all of them",
}


def leave_out_hosted_tools(values: Values, served: Sequence[str] = TOOLS) -> tuple[Values, list[str]]:
    """Leave out the tools that a hosted service runs, whichever it is, and return the paths of those. Raises BadRequest
    for one that the model must call, with the types that are `served` instead. Their types may end with a date."""
    tools, choice = values.get("tools"), values.get("tool_choice")
    if not isinstance(tools, list):
        return values, []
    hosted = {index: kind for index, tool in enumerate(tools) if (kind := _hosted_type(tool, served)) is not None}
    chosen = choice if isinstance(choice, dict) else {}
    if any(_is_forced(kind, chosen, only=len(hosted) == len(tools), choice=choice) for kind in hosted.values()):
        raise _refusal(*next(iter(hosted.items())), served)
    kept = [tool for index, tool in enumerate(tools) if index not in hosted]
    left = {**values, "tools": kept} if hosted else values
    return _without_hosted_choices(left, served), [f"tools[{index}]" for index in hosted]


def _hosted_type(tool: object, served: Sequence[str]) -> str | None:
    """Return the type of a tool that is none of the client's: that has one, and no parameters."""
    if not isinstance(tool, dict) or "parameters" in tool:
        return None
    kind = tool.get("type")
    return kind if isinstance(kind, str) and kind not in served else None


def _unversioned_type(kind: object) -> object:
    """Return the type of a hosted tool, without the version if it is known."""
    return next((name for name in HOSTED if isinstance(kind, str) and kind.startswith(name)), kind)


def _is_forced(kind: str, chosen: Mapping[str, Any], *, only: bool, choice: object) -> bool:
    """Return whether the model must call this tool: it is named, or there is no other to choose from."""
    allowed = chosen.get("allowed_tools", chosen)
    required = choice == "required" or (isinstance(allowed, Mapping) and allowed.get("mode") == "required")
    return _unversioned_type(chosen.get("type")) == _unversioned_type(kind) or (only and required)


def _refusal(index: int, kind: str, served: Sequence[str]) -> BadRequest:
    message = (
        f"'{kind[:60]}' is a tool of the hosted service, and this server "
        f"{HOSTED.get(str(_unversioned_type(kind)), 'has no such tool')}. Declare a function and run it yourself. "
        f"Tools here: {', '.join(served)}."
    )
    return BadRequest(message, param=f"tools[{index}].type")


def _without_hosted_choices(values: Values, served: Sequence[str]) -> Values:
    """Leave hosted tools out of the list of those that may be called."""
    choice = values.get("tool_choice")
    if not isinstance(choice, dict) or not isinstance(allowed := choice.get("tools"), list):
        return values
    kept = [tool for tool in allowed if _hosted_type(tool, served) is None]
    return {**values, "tool_choice": {**choice, "tools": kept} if kept else "none"}


class FunctionTool(LenientModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Grammar(GrammarText):
    """Text by a grammar."""

    type: Literal["grammar"]


class CustomTool(LenientModel):
    """A tool of the client that takes a text instead of JSON."""

    type: Literal["custom"]
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    format: Annotated[FreeText | Grammar, Field(discriminator="type")] | None = None


class NamespaceTool(LenientModel):
    """Tools of the client under one name, which its calls repeat."""

    type: Literal["namespace"]
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: BoundedText | None = None
    tools: Annotated[
        list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]


class Mask(LenientModel):
    """The mask of an edit."""

    image_url: Annotated[str, Field(min_length=1)]
    file_id: None = None


class ImageTool(LenientModel):
    """The image tool. Unset fields are the image model's defaults. `seed` and `long_prompt` are extensions of this
    server."""

    type: Literal["image_generation"]
    model: str | None = None
    action: Literal["generate", "edit", "auto"] | None = None
    size: SizeName = None
    quality: Annotated[Literal["low", "medium", "high", "auto"], Word] | None = None
    background: Annotated[Literal["transparent", "opaque", "auto"], Word] | None = None
    output_format: OutputFormat | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    moderation: Annotated[Literal["auto", "low"], Word] | None = None
    input_fidelity: Annotated[Literal["low", "high"] | None, OrNone] = None
    input_image_mask: Mask | None = None
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = None
    n: Literal[1] | None = None
    seed: Seed = None
    long_prompt: Annotated[LongPrompt, Word] | None = None


Tool = Annotated[FunctionTool | CustomTool | NamespaceTool | ImageTool, Field(discriminator="type")]


class NamedFunction(LenientModel):
    """A tool choice: this function."""

    type: Literal["function"]
    name: str
    namespace: str | None = None


class NamedCustomTool(LenientModel):
    """A tool choice: this custom tool."""

    type: Literal["custom"]
    name: str
    namespace: str | None = None


class HostedTool(LenientModel):
    """A tool choice: the image tool."""

    type: Literal["image_generation"]


NamedTool = Annotated[NamedFunction | NamedCustomTool | HostedTool, Field(discriminator="type")]


class AllowedTools(LenientModel):
    """A tool choice: some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


ToolChoice = Annotated[
    Mode
    | Annotated[
        Annotated[NamedFunction | NamedCustomTool | HostedTool | AllowedTools, Field(discriminator="type")],
        Tag("object"),
    ],
    STRING_OR_OBJECT,
]


def echo_tool(tool: FunctionTool | CustomTool | NamespaceTool | ImageTool) -> dict[str, Any]:
    """Return the tool as the response object repeats it: with the defaults that OpenAI fills in."""
    match tool:
        case FunctionTool():
            return {**tool.model_dump(), "strict": True if tool.strict is None else tool.strict}
        case CustomTool():
            return {"format": {"type": "text"}, **tool.model_dump(exclude_none=True)}
        case NamespaceTool():
            return {**tool.model_dump(), "tools": [echo_tool(inner) for inner in tool.tools]}
        case ImageTool():
            defaults = {"background": "auto", "moderation": "auto", "n": 1, "output_compression": 100}
            named = {"output_format": "png", "quality": "auto", "size": "auto"}
            return {**defaults, **named, **tool.model_dump(exclude_none=True)}
