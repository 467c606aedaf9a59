"""Tools of odd schemas: every family can call them, and its arguments are understood."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.chat.failures import InvalidRequest
from pipelines.chat.grammars.building import build_grammar
from pipelines.chat.grammars.constraints import Constraint
from pipelines.chat.syntax.families import TABLE
from pipelines.protocol.chat import ChatJob, ChatSpec, JsonFormat
from tests.support.chat_outputs import CASES, CITY
from tests.unit.engine.test_output_families import HEADED, Model

ODD: dict[str, Any] = {  # schemas of one argument
    "texts without a type": {"enum": ["c", "f"]},
    "values of many types": {"enum": ["a", 1, None, True, 1.5]},
    "numbers that are texts": {"type": "integer", "enum": ["1", "2"]},
    "texts that are numbers": {"type": "string", "enum": [1, 2]},
    "another type's constant": {"type": "integer", "const": "k"},
    "no types": {"type": []},
    "a type of nobody's": {"type": ["string", "any"]},
    "no options": {"anyOf": []},
    "an option of anything": {"anyOf": [True, {"type": "string"}]},
    "no values": {"enum": []},
    "an empty range": {"type": "integer", "minimum": 5, "maximum": 1},
    "an empty length": {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 1},
    "nothing": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "nothing inside": {"type": "object", "properties": {"x": {"type": "integer", "const": "k"}}},
}


def _tool(parameters: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return ({"type": "function", "function": {"name": "go", "parameters": parameters}},)


@pytest.mark.parametrize("name", CASES)
def test_no_argument_of_a_tool_makes_a_grammar_that_is_wrong(name: str) -> None:
    model = Model(name)
    for what, schema in ODD.items():
        tools = _tool({"type": "object", "properties": {"city": {"type": "string"}, "odd": schema}})
        job = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=tools)
        grammar = build_grammar(model.table, job, model.syntax, "free")
        assert grammar, what
        assert Constraint(model.table, grammar).token_mask().any(), what


@pytest.mark.parametrize("name", ["hermes", "function-xml", "gemma4", "lfm2"])
def test_what_no_value_fits_is_left_out_alone(name: str) -> None:
    model, arguments = Model(name), {"odd": {"y": 1}}
    inner = {**ODD["nothing inside"]["properties"], "y": {"type": "integer"}}
    tools = _tool({"type": "object", "properties": {"odd": {"type": "object", "properties": inner}}})
    assert model.write(TABLE[name].calls.written([("go", arguments)]), tools=tools)[2] == [arguments]


BY_TYPE = {"type": "object", "properties": {"odd": ODD["values of many types"], "unit": {"const": "km"}}}


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_every_value_of_an_enum_can_be_written(name: str) -> None:
    model, calls = Model(name), TABLE[name].calls
    for value in BY_TYPE["properties"]["odd"]["enum"]:  # type: ignore[index]
        arguments = {"odd": value, "unit": "km"}
        assert model.write(calls.written([("go", arguments)]), tools=_tool(BY_TYPE))[2] == [arguments], value


ZIP = {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]}
ROOTS: dict[str, dict[str, Any]] = {  # schemas of {"city": "Paris", "days": 3} that name it elsewhere, or not at all
    "any": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
    "others": {
        "type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": {"type": "integer"},
    },
    "a reference": {"$ref": "#/$defs/A", "$defs": {"A": CITY}},
    "a union": {"type": "object", "anyOf": [CITY, ZIP]},
    "both": {
        "allOf": [{"$ref": "#/definitions/A"}, {"properties": {"days": {"type": "integer"}}}],
        "definitions": {"A": {"type": "object", "properties": {"city": {"type": "string"}}}},
    },
    "either": {"type": "object", "properties": CITY["properties"], "anyOf": [{"required": ["city"]}, {}]},
    "impossible": {"type": "object", "properties": {**CITY["properties"], "x": False}, "required": ["x"]},
}  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_arguments_are_found_wherever_a_schema_has_them(name: str, choice: str) -> None:
    model, arguments = Model(name), {"city": "Paris", "days": 3}
    script = TABLE[name].calls.written([("go", arguments)])
    for what, schema in ROOTS.items():
        assert model.write(script, tools=_tool(schema), tool_choice=choice)[1:3] == ("", [arguments]), what


def test_a_pattern_that_can_not_be_enforced_is_named() -> None:
    model, pattern = Model("hermes"), {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x).$"}}}
    job = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, format=JsonFormat(pattern))
    with pytest.raises(InvalidRequest) as raised:
        build_grammar(model.table, job, model.syntax, "free")
    assert "regex parse error: ^(?!x).$ error: look-around, " in raised.value.failed.message


NUMBERS, TEXTS = {"type": "integer"}, {"type": "string"}
MAPS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # a schema, arguments, and others that don't fit
    ({"additionalProperties": NUMBERS}, {"a": 1, "b": 2}, {"a": "x"}),
    ({"additionalProperties": TEXTS}, {"a": "1", "b": "true"}, {}),
    ({"properties": {"s": TEXTS}, "additionalProperties": NUMBERS}, {"s": "x", "n": 3}, {"s": "x", "n": "three"}),
    ({"properties": {"m": {"type": "object"}}}, {"m": {"a": 1, "b": {"c": ["x", True]}}}, {}),
    (
        {"properties": {"m": {"type": "object", "additionalProperties": NUMBERS}}},
        {"m": {"a-b": 1, "x y": 2, "日": 3, "2d": 4}}, {"m": {"a": "x"}},
    ),
    (
        {"properties": {"m": {"type": "object", "additionalProperties": {"type": "array", "items": NUMBERS}}}},
        {"m": {"a": [1, 2], "b": []}}, {"m": {"a": ["x"]}},
    ),
    (
        {"properties": {"m": {"type": "object", "additionalProperties": ZIP}}},
        {"m": {"a": {"zip": "1"}}}, {"m": {"a": {}}},
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_properties_without_names_have_the_type_that_the_schema_gives_them(name: str) -> None:
    model, calls = Model(name), TABLE[name].calls
    for schema, arguments, others in MAPS:
        tools = _tool({"type": "object", **schema})
        assert model.write(calls.written([("go", arguments)]), tools=tools)[1:3] == ("", [arguments])
        if others:
            with pytest.raises(AssertionError, match="forbidden"):
                model.write(calls.written([("go", others)]), tools=tools)


@pytest.mark.parametrize("odd", [["a"], ["a", "b", "c", "d"], "c"])
def test_gemmas_lists_are_as_long_as_the_schema_says(odd: Any) -> None:
    list_or_word = {"anyOf": [{"type": "array", "items": TEXTS, "minItems": 2, "maxItems": 3}, {"const": "word"}]}
    tools = _tool({"type": "object", "properties": {"odd": list_or_word}})
    for value in (["a", "b"], ["a", "b", "c"], "word"):
        script = TABLE["gemma4"].calls.written([("go", {"odd": value})])
        assert Model("gemma4").write(script, tools=tools)[2] == [{"odd": value}]
    with pytest.raises(AssertionError, match="forbidden"):
        Model("gemma4").write(TABLE["gemma4"].calls.written([("go", {"odd": odd})]), tools=tools)
