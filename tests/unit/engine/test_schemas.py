"""Schemas as they are enforced: closed where they name their properties, with an end to every string."""

from typing import Any

import pytest

from pipelines.chat.syntax.schemas import tighten, tighten_parameters

STRING = {"type": "string"}
BOUND = {"type": "string", "maxLength": 9}


def named(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "tight"),
    [
        (named(a=STRING), {**named(a=BOUND), "additionalProperties": False}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, "additionalProperties": False}),
        ({"items": named(a={})}, {"items": {**named(a={}), "additionalProperties": False}}),
        ({"anyOf": [named(a={}), STRING]}, {"anyOf": [{**named(a={}), "additionalProperties": False}, BOUND]}),
        ({"$defs": {"x": named(a={})}}, {"$defs": {"x": {**named(a={}), "additionalProperties": False}}}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"], "maxLength": 9}),
        ({"type": "string", "minLength": 20}, {"type": "string", "minLength": 20, "maxLength": 20}),
        (named(allOf=STRING), {**named(allOf=BOUND), "additionalProperties": False}),
    ],
)  # fmt: skip
def test_what_is_named_is_all_there_is_and_strings_end(schema: dict[str, Any], tight: dict[str, Any]) -> None:
    assert tighten(schema, 9) == tight


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        named(),
        {**named(a={}), "additionalProperties": True},
        {**named(a={}), "additionalProperties": {"type": "integer"}},
        {**named(a={}), "patternProperties": {"^x": {}}},
        {**named(a={}), "required": ["b"]},
        {"allOf": [named(a={}), named(b={})]},
        {**named(a={}), "anyOf": [named(b={}), named(c={})]},
        {**named(a={}), "$ref": "#/$defs/x", "$defs": {"x": named(b={})}},
        {"type": "string", "maxLength": 100_000},
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "format": "date"},
        {"type": "string", "enum": ["a"]},
        {"properties": 5},
        {"items": [5], "anyOf": "x"},
    ],
)
def test_what_a_schema_says_itself_stays(schema: dict[str, Any]) -> None:
    assert tighten(schema, 9) == schema


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, named()])
def test_a_tool_without_parameters_takes_none(schema: dict[str, Any]) -> None:
    assert tighten_parameters(schema, 9) == {**schema, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [{"type": "object", "additionalProperties": {"type": "integer"}}, {"$ref": "#/$defs/x"}, {"required": ["a"]}],
)
def test_a_tool_that_takes_any_parameters_does(schema: dict[str, Any]) -> None:
    assert tighten_parameters(schema, 9) == schema
