"""Schemas of tools that clients do not write themselves: each becomes a grammar, and what it leaves out is named."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.chat.grammars.building import build_grammar
from pipelines.chat.grammars.constraints import Constraint
from pipelines.chat.syntax.output_syntax import OutputSyntax
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.protocol.chat import ChatJob, ChatSpec
from server.schemas.chat import MAX_TOOLS
from starters.chat.tokens import make_tokenizer

TOKENIZER = make_tokenizer([])
TABLE = TokenTable(TOKENIZER, [TOKENIZER.eos_token_id])
SYNTAX = OutputSyntax.of(TOKENIZER, "<tool_call> </tool_call>")
LOOKAROUND = "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"  # pydantic's, of a Decimal
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}

# of a parameter: its schema, and the keywords that nothing enforces
PARAMETERS: dict[str, tuple[Any, set[str]]] = {
    "formats": ({"type": "string", "format": "password"}, {"format"}),
    "numbers": ({"type": "integer", "format": "int64"}, set()),
    "records": ({"type": "object", "propertyNames": {"type": "string"}}, {"propertyNames"}),
    "sets": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, {"uniqueItems"}),
    "not": ({"not": {}}, {"not"}),
    "any": ({}, set()),
    "true": (True, set()),
    "decimals": ({"type": "string", "pattern": LOOKAROUND}, {"pattern"}),
    "backreferences": ({"type": "string", "pattern": r"^(a)\1$"}, {"pattern"}),
    "contains": ({"type": "array", "contains": {"type": "integer"}}, {"contains"}),
    "if": ({"type": "object", "if": {}, "then": {}}, {"if", "then"}),
    "dependent": ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"dependentRequired"}),
    "absent": ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, set()),
    "long": ({"type": "string", "maxLength": 100_000}, set()),
    "null": ({"type": "null"}, set()),
    "unknown": ({"type": "file"}, set()),
    "lost": ({"$ref": "#/$defs/none"}, {"$ref"}),
    "elsewhere": ({"$ref": "https://example.com/schema.json"}, {"$ref"}),
    "nulls": ({"type": "string", "enum": None, "format": None, "description": None}, set()),
    "several": ({"type": ["string", "null"], "default": None}, set()),
    "lists": ({"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}, set()),
    "draft 4": ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, set()),
    "no items": ({"type": "array", "items": False}, set()),
    "empty enum": ({"type": "string", "enum": []}, set()),  # no value: it is left out
    "empty range": ({"type": "integer", "minimum": 5, "maximum": 1}, set()),
}
WHOLE: dict[str, tuple[Any, set[str]]] = {
    "absent": (None, set()),
    "nothing": ({}, set()),
    "no type": ({"properties": {"a": {"type": "string"}}}, set()),
    "one of": ({"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}]}, set()),
    "itself": ({**NODE, "$defs": {"Node": NODE}}, set()),
    "an array": ({"type": "array", "items": {"type": "string"}}, set()),
    "nothing but false": ({"type": "object", "properties": {"a": False}}, set()),
    "impossible": ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, {"schema"}),
}


def unenforced(parameters: Any) -> set[str]:
    """The keywords that the grammar of a required call leaves out. It is one that a call can be written with."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    job = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=(tool,), tool_choice="required")
    grammar = build_grammar(TABLE, job, SYNTAX, "free")
    assert grammar
    constraint = Constraint(TABLE, grammar)
    for token in TOKENIZER.encode('<tool_call>\n{"name": "f", "arguments": ', add_special_tokens=False):
        assert constraint.token_mask()[token]
        constraint.accept(token)
    assert constraint.token_mask().any()
    return {each.removeprefix("tools[0].function.parameters.").removesuffix(" (f)") for each in grammar.unenforced}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_of_any_schema_is_enforced_as_far_as_it_can_be(name: str) -> None:
    parameter, keywords = PARAMETERS[name]
    assert unenforced({"type": "object", "properties": {"p": parameter}}) == keywords


@pytest.mark.parametrize("name", WHOLE)
def test_parameters_of_any_schema_are_enforced_as_far_as_they_can_be(name: str) -> None:
    parameters, keywords = WHOLE[name]
    assert unenforced(parameters) == keywords


def test_an_agent_may_have_the_tools_of_several_mcp_servers() -> None:
    names = [f"mcp__server_{number}__look" for number in range(MAX_TOOLS)]
    parameters = {"type": "object", "properties": {f"a{number}": {"type": "string"} for number in range(8)}}
    tools = tuple({"type": "function", "function": {"name": name, "parameters": parameters}} for name in names)
    job = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=tools)
    grammar = build_grammar(TABLE, job, SYNTAX, "free")
    assert grammar
    constraint = Constraint(TABLE, grammar)
    call = f'<tool_call>\n{{"name": "{names[-1]}", "arguments": {{"a0": "x"'
    for token in TOKENIZER.encode(call, add_special_tokens=False):
        assert constraint.token_mask()[token]
        constraint.accept(token)


@pytest.mark.slow
def test_schemas_that_are_too_large_together_leave_the_arguments_free() -> None:
    """The library takes some 60,000 symbols in a grammar."""
    parameters = [
        {"type": "object", "properties": {f"a{tool}_{number}": {"enum": [tool, "x"]} for number in range(80)}}
        for tool in range(MAX_TOOLS)
    ]
    tools = tuple(
        {"type": "function", "function": {"name": f"f{number}", "parameters": each}}
        for number, each in enumerate(parameters)
    )
    job = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=tools, strict_tools=frozenset({"f0"}))
    whole = build_grammar(TABLE, job, SYNTAX, "free")
    assert whole
    with pytest.raises(RuntimeError, match="the grammar is wrong"):
        Constraint(TABLE, whole)
    free = build_grammar(TABLE, job, SYNTAX, "free", any_arguments=True)
    assert free
    assert free.unenforced == tuple(f"tools[{n}].function.parameters.schema (f{n})" for n in range(1, MAX_TOOLS))
    constraint = Constraint(TABLE, free)
    for token in TOKENIZER.encode('<tool_call>\n{"name": "f7", "arguments": {"b": 1}}', add_special_tokens=False):
        assert constraint.token_mask()[token]
        constraint.accept(token)
