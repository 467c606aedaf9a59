"""The input of a response: a text, or items as OpenAI's SDKs send them and return them in later rounds."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, Tag

from server.schemas.chat_messages import TEXT_OR_PARTS, BoundedText, LenientModel, Text

Id = Annotated[str, Field(min_length=1, max_length=200)]
ShellCallType = Literal["local_shell_call", "shell_call", "apply_patch_call"]
ShellOutputType = Literal["local_shell_call_output", "shell_call_output", "apply_patch_call_output"]
UnreadType = Literal[
    "web_search_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
]


class CodeOutput(LenientModel):
    """The text that a program wrote, or an image that it made."""

    type: str
    logs: BoundedText | None = None


class CodeInterpreterCall(LenientModel):
    """A program that ran at the hosted service."""

    type: Literal["code_interpreter_call"]
    id: Id | None = None
    status: str | None = None
    code: BoundedText | None = None
    outputs: list[CodeOutput] | None = None


class FoundText(LenientModel):
    """A part of a file."""

    filename: str | None = None
    text: BoundedText | None = None


class FileSearchCall(LenientModel):
    """A search in files of the hosted service."""

    type: Literal["file_search_call"]
    id: Id | None = None
    status: str | None = None
    queries: list[str] = Field(default_factory=list)
    results: list[FoundText] | None = None


class McpCall(LenientModel):
    """A call of a tool of an MCP server, with its result."""

    type: Literal["mcp_call"]
    id: Id | None = None
    status: str | None = None
    server_label: str = ""
    name: Annotated[str, Field(min_length=1)]
    arguments: BoundedText = "{}"
    output: BoundedText | None = None
    error: Any = None


class ShellCall(LenientModel):
    """Commands or changes of files, which the client ran by the tools of these names."""

    type: ShellCallType
    id: Id | None = None
    call_id: Id
    status: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None


class ShellOutput(LenientModel):
    """The output of a shell's commands. A local shell's has its call's id as `id`."""

    type: ShellOutputType
    id: Id | None = None
    call_id: Id | None = None
    status: str | None = None
    output: BoundedText | list[dict[str, Any]] | None = None


class UnreadItem(LenientModel):
    """An item that says nothing without its outcome, which the answer after it has. It is not part of the prompt."""

    type: UnreadType
    id: Id | None = None
    call_id: Id | None = None
    status: str | None = None
    action: dict[str, Any] | None = None
    server_label: str | None = None
    name: str | None = None
    arguments: Any = None
    tools: list[dict[str, Any]] | None = None
    approve: bool | None = None
    approval_request_id: str | None = None


HostedItem = CodeInterpreterCall | FileSearchCall | McpCall | ShellCall | ShellOutput | UnreadItem


Status = Literal["in_progress", "completed", "incomplete"]


class InputText(LenientModel):
    """A text part of a message."""

    type: Literal["input_text"]
    text: BoundedText


class InputImage(LenientModel):
    """An image by https URL, by the URL of one of this server's own results, or by data URI."""

    type: Literal["input_image"]
    image_url: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: None = None


class OutputText(LenientModel):
    """A text part of an earlier answer."""

    type: Literal["output_text"]
    text: BoundedText


class Refusal(LenientModel):
    """A refusal in an earlier answer."""

    type: Literal["refusal"]
    refusal: BoundedText


Part = Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")]
OutputPart = Annotated[InputText | InputImage, Field(discriminator="type")]


class MessageItem(LenientModel):
    """A message of the user, the developer or the assistant."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[Text | Annotated[list[Part], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]
    id: Id | None = None
    status: Status | None = None


class FunctionCallItem(LenientModel):
    """A call of a client's function, made by the model in an earlier round."""

    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    arguments: BoundedText
    namespace: str | None = None
    id: Id | None = None
    status: Status | None = None


class CustomCallItem(LenientModel):
    """A call of a client's custom tool, made by the model in an earlier round."""

    type: Literal["custom_tool_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    input: BoundedText
    namespace: str | None = None
    id: Id | None = None
    status: Status | None = None


class FunctionOutputItem(LenientModel):
    """The result of a function's or a custom tool's call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Id
    output: Annotated[Text | Annotated[list[OutputPart], Field(min_length=1), Tag("parts")], TEXT_OR_PARTS]
    id: Id | None = None
    status: Status | None = None


class ImageCallItem(LenientModel):
    """A generated image. The id is enough if this server stored it. One that has failed has none."""

    type: Literal["image_generation_call"]
    id: Id
    status: str | None = None
    result: str | None = None
    revised_prompt: BoundedText | None = None


class ReasoningItem(LenientModel):
    """Reasoning of an earlier round, for models whose templates show it."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None
    encrypted_content: Annotated[str | None, Field(exclude=True)] = None  # read before: this server's is the content


class CompactionItem(LenientModel):
    """The item that /v1/responses/compact made of earlier ones."""

    type: Literal["compaction"]
    encrypted_content: BoundedText
    id: Id | None = None


class ItemReference(LenientModel):
    """A stored item, by its id."""

    type: Literal["item_reference"]
    id: Id


def _with_type(value: object) -> object:
    """Add the type of messages and references, which clients often leave out."""
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    return {**value, "type": "message" if "role" in value else "item_reference"}


Item = Annotated[
    Annotated[
        MessageItem
        | FunctionCallItem
        | CustomCallItem
        | FunctionOutputItem
        | ImageCallItem
        | ReasoningItem
        | CompactionItem
        | ItemReference
        | HostedItem,
        Field(discriminator="type"),
    ],
    BeforeValidator(_with_type),
]
