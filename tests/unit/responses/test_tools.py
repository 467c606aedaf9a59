"""Tools of a response as functions: custom tools, and tools in namespaces."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from server.errors import BadRequest
from server.flows.responses.tools import ResponseTools, function_name, read_tools
from server.schemas.response_tools import Tool, ToolChoice, echo_tool

LARK = 'start: "a"+'
FUNCTION = {"type": "function", "name": "look"}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": LARK}}
REGEX = {"type": "custom", "name": "sum", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}}
CHOICE = {"type": "custom", "name": "patch", "namespace": "crm"}
CRM = {"type": "namespace", "name": "crm", "description": "customers", "tools": [FUNCTION, PATCH]}


def read(*tools: dict[str, Any], choice: Any = "auto") -> ResponseTools:
    return read_tools(
        TypeAdapter(list[Tool]).validate_python(tools), TypeAdapter[ToolChoice](ToolChoice).validate_python(choice)
    )


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    tools = read({"type": "custom", "name": "note", "description": "Write it down"}, PATCH, REGEX)
    note, patch, total = (tool["function"] for tool in tools.functions)
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert note["parameters"] == {**text, "additionalProperties": False}
    assert note["description"] == "Write it down"
    assert LARK in patch["description"]
    assert total["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:[0-9]+)$"}
    assert tools.grammars == {"patch": LARK}


def test_a_tool_of_a_namespace_has_its_name_in_front() -> None:
    tools = read(FUNCTION, CRM, {"type": "image_generation"})
    assert [tool["function"]["name"] for tool in tools.functions] == [
        "look",
        "crm__look",
        "crm__patch",
        "image_generation",
    ]
    called = tools.called["crm__patch"]
    assert (called.name, called.namespace, called.is_custom) == ("patch", "crm", True)
    assert tools.grammars == {"crm__patch": LARK}
    assert tools.request_path("tools[2].format.definition") == "tools[1].tools[1].format.definition"
    assert tools.request_path("tools[1].function.parameters") == "tools[1].tools[0].parameters"
    assert tools.request_path("tools[9].function") == "tools[9].function"


def test_a_name_is_never_longer_than_the_protocol_allows() -> None:
    assert function_name("look", "mcp__files__") == "mcp__files__look"
    assert function_name("x" * 60, "y" * 60) == "yy__"[-4:] + "x" * 60


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        (CHOICE, ("crm__patch",)),
        ({"type": "function", "name": "look"}, ("look",)),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "patch", "namespace": "crm"}],
            },
            ("crm__patch",),
        ),
    ],
)
def test_a_choice_names_a_tool_as_it_was_declared(choice: Any, allowed: tuple[str, ...]) -> None:
    tools = read(FUNCTION, CRM, choice=choice)
    assert (tools.mode, tools.allowed) == ("required", allowed)


def test_a_name_that_is_there_twice_and_a_choice_that_is_not_are_refused() -> None:
    with pytest.raises(BadRequest, match="'crm__look' is used twice"):
        read(CRM, {"type": "function", "name": "crm__look"})
    with pytest.raises(BadRequest, match="'patch' is not among the tools: look, crm__look, crm__patch"):
        read(FUNCTION, CRM, choice={"type": "custom", "name": "patch"})


def test_the_answer_repeats_the_tools() -> None:
    namespace = TypeAdapter[Tool](Tool).validate_python(CRM)
    patch = {**PATCH, "type": "custom"}
    echoed = echo_tool(namespace)
    assert echoed["tools"][0]["strict"] is True
    assert echoed["tools"][1] == patch
    assert echoed["description"] == "customers"
