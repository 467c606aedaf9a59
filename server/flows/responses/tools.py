"""The tools of a response as a chat model gets them: all are functions.

A custom tool takes one argument, the text `input`. A tool of a namespace has the namespace before its name. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.protocol.image_tool import IMAGE_TOOL
from server.flows.chat.custom_tools import custom_function
from server.flows.chat.tools import check_unique_names, function_tool, require_known_tool, require_tools
from server.schemas.response_tools import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    Grammar,
    HostedTool,
    ImageTool,
    NamedCustomTool,
    NamedFunction,
    NamespaceTool,
    Tool,
    ToolChoice,
)

IMAGE_FUNCTION: str = IMAGE_TOOL["function"]["name"]
MAX_NAME = 64  # characters, of a function's name in OpenAI's protocol
ENGINE_PATH = re.compile(r"tools\[(\d+)\](?:\.function)?")
ToolMode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class CalledTool:
    """The tool that the client declared under a function's name."""

    name: str
    namespace: str | None
    is_custom: bool
    path: str  # in the request


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """All tools of a request, and which of them may be called."""

    functions: tuple[Mapping[str, Any], ...] = ()  # in the shape of chat completions, the image tool included
    called: Mapping[str, CalledTool] = field(default_factory=dict)  # by the functions' names, in their order
    grammars: Mapping[str, str] = field(default_factory=dict)  # by the functions' names, in Lark: of custom tools
    strict: frozenset[str] = frozenset()  # names of functions whose schemas are enforced whole
    mode: ToolMode = "auto"
    allowed: tuple[str, ...] = ()  # functions' names; empty for all

    def request_path(self, param: str | None) -> str | None:
        """Return the request's path of a field that an engine calls `tools[i].function...`."""
        paths = [tool.path for tool in self.called.values()]
        found = ENGINE_PATH.match(param or "")
        if param is None or found is None or int(found[1]) >= len(paths):
            return param
        return paths[int(found[1])] + param[found.end() :]

    def unread_path(self, path: str) -> str:
        """Return the request's path of what an engine could not use: a part of a tool, or thoughts of the input."""
        return self.request_path(path) or path if ENGINE_PATH.match(path) else "input[].content"


def read_tools(tools: Sequence[Tool], choice: ToolChoice) -> ResponseTools:
    """Turn declared tools into functions of the model. Raises BadRequest for an invalid schema, name or choice."""
    declared = [(function_name(called.name, called.namespace), tool, called) for tool, called in _declared_tools(tools)]
    names = [name for name, _, _ in declared]
    check_unique_names(names, [called.path for _, _, called in declared])
    mode, allowed = _choice(choice, names)
    return ResponseTools(
        functions=tuple(_function(tool, called, name) for name, tool, called in declared),
        called={name: called for name, _, called in declared},
        grammars={
            name: tool.format.definition
            for name, tool, _ in declared
            if isinstance(tool, CustomTool) and isinstance(tool.format, Grammar) and tool.format.syntax == "lark"
        },
        strict=frozenset(name for name, tool, _ in declared if isinstance(tool, FunctionTool) and tool.strict),
        mode=mode,
        allowed=allowed,
    )


def function_name(name: str, namespace: str | None) -> str:
    """Return the name that the model reads and writes. A name that is too long loses its beginning, because its end is
    more specific."""
    if namespace is None:
        return name
    return f"{namespace.removesuffix('__')}__{name}"[-MAX_NAME:]


def _declared_tools(tools: Sequence[Tool]) -> Iterator[tuple[FunctionTool | CustomTool | ImageTool, CalledTool]]:
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if isinstance(tool, NamespaceTool):
            for number, inner in enumerate(tool.tools):
                yield inner, _called_tool(inner, f"{path}.tools[{number}]", tool.name)
        else:
            yield tool, _called_tool(tool, path, None)


def _called_tool(tool: FunctionTool | CustomTool | ImageTool, path: str, namespace: str | None) -> CalledTool:
    name = IMAGE_FUNCTION if isinstance(tool, ImageTool) else tool.name
    return CalledTool(name, namespace, isinstance(tool, CustomTool), path)


def _function(tool: FunctionTool | CustomTool | ImageTool, called: CalledTool, name: str) -> Mapping[str, Any]:
    if isinstance(tool, ImageTool):
        return IMAGE_TOOL
    if isinstance(tool, CustomTool):
        grammar = tool.format if isinstance(tool.format, Grammar) else None
        return custom_function(name, tool.description, grammar)
    param = f"{called.path}.parameters"
    return function_tool(name, tool.description, tool.parameters, strict=tool.strict, param=param)


def _choice(choice: ToolChoice, names: Sequence[str]) -> tuple[ToolMode, tuple[str, ...]]:
    match choice:
        case AllowedTools(mode=mode, tools=tools):
            return mode, tuple(require_known_tool(_chosen_name(tool), names) for tool in tools)
        case NamedFunction() | NamedCustomTool() | HostedTool():
            return "required", (require_known_tool(_chosen_name(choice), names),)
        case "required":
            require_tools(names)
    return choice, ()


def _chosen_name(tool: NamedFunction | NamedCustomTool | HostedTool) -> str:
    return IMAGE_FUNCTION if isinstance(tool, HostedTool) else function_name(tool.name, tool.namespace)
