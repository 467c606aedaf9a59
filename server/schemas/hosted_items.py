"""Input items of tools that this server does not run. Conversations that were begun elsewhere have them.

Each model has only the fields that are read or shown again, so that an item can't name stored files.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from server.schemas.chat_messages import BoundedText, LenientModel

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
