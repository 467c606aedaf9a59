"""Arguments that a schema does not take: the grammar of every notation forbids them, or their keyword is named."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipelines.chat.grammars.building import build_grammar
from pipelines.chat.syntax.arguments import JsonArguments
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.raw_strings import whole_text_regex
from pipelines.protocol.chat import ChatJob, ChatSpec
from tests.support.chat_outputs import CASES
from tests.unit.engine.test_output_families import HEADED, Model

JSON = [name for name in CASES if isinstance(TABLE[name].calls.arguments, JsonArguments)]
FAMILIES = ["hermes", *(name for name in CASES if name not in (*JSON, *HEADED))]
ID = {"type": "string", "pattern": "^[a-z]{2}-\\d+$"}

# of an argument: its schema, values that it takes, and values that it does not
STRINGS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a pattern": (ID, ["ab-1", "zz-007"], ["ab-", "Ab-1", "ab-1 "]),
    "a part": ({"type": "string", "pattern": "b+c"}, ["bc", "a\nbbc d"], ["b c", ""]),
    "either": ({"type": "string", "pattern": "^a|[b|]$|x/y"}, ["a1", "1b", "1|", "?x/y?"], ["1a", "b1", "x|y"]),
    "at least": ({"type": "string", "minLength": 3}, ["abc", "a\n\nb", "\n\n\n", "x" * 50], ["ab", "\n\n", ""]),
    "at most": ({"type": "string", "maxLength": 3}, ["", "a", "a\nc"], ["abcd", "\n\n\n\n"]),
    "both": ({"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-c]*$"}, ["ab", "abca"], ["a", "abcda"]),
    "or nothing": ({"type": ["string", "null"], "pattern": "^[a-c]+$"}, ["ab", None], ["", "x"]),
    "an option": ({"anyOf": [ID, {"type": "integer", "maximum": 9}]}, ["ab-1", 7], ["ab", "12"]),
}

model_of = cache(Model)


def tools(schema: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    parameters = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    return ({"type": "function", "function": {"name": "go", "parameters": parameters}},)


def unenforced(name: str, schema: dict[str, Any]) -> set[str]:
    """The keywords that the family's grammar does not hold the argument to, as the answer names them."""
    model = model_of(name)
    job = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=tools(schema))
    grammar = build_grammar(model.table, job, model.syntax, "free")
    assert grammar
    return {path.removeprefix("tools[0].function.parameters.").removesuffix(" (go)") for path in grammar.unenforced}


@pytest.mark.parametrize("what", STRINGS)
@pytest.mark.parametrize("name", FAMILIES)
def test_strings_keep_their_length_and_pattern(name: str, what: str) -> None:
    schema, taken, refused = STRINGS[what]
    model, calls = model_of(name), TABLE[name].calls
    assert not unenforced(name, schema)
    for value in taken:
        assert model.write(calls.written([("go", {"p": value})]), tools=tools(schema))[2] == [{"p": value}], value
    for value in refused:
        with pytest.raises(AssertionError, match="forbidden"):
            model.write(calls.written([("go", {"p": value})]), tools=tools(schema))


VALUES: dict[str, tuple[dict[str, Any], Any]] = {  # of an argument: its schema, and a value that it does not take
    "format": ({"type": "string", "format": "date"}, "soon"),
    "minLength": ({"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}, {"a": "x"}),
    "minItems": ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["a"]),
    "maxItems": ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, ["a", "b"]),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, [1, 2]),
    "minimum": ({"type": "integer", "minimum": 5}, 3),
    "minProperties": ({"type": "object", "minProperties": 2}, {"a": 1}),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, {"a": "b"}),
    "anyOf": (
        {
            "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {},
    ),
    "pattern": ({"type": "string", "pattern": "(^a|^b)c"}, "xc"),
    "allOf": ({"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^a"}]}, "b"),
}  # fmt: skip


@pytest.mark.parametrize("keyword", VALUES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_keyword_that_does_not_hold_a_value_is_named(name: str, keyword: str) -> None:
    schema, value = VALUES[keyword]
    model = model_of(name)
    try:
        written = model.write(TABLE[name].calls.written([("go", {"p": value})]), tools=tools(schema))[2]
    except AssertionError as error:
        assert "forbidden" in str(error)  # noqa: PT017 - either this, or its name
    else:
        assert written == [{"p": value}]
        assert keyword in unenforced(name, schema), json.dumps(schema)


def nested(value: Any, levels: int) -> Any:
    return {"n": 1, "in": nested(value, levels - 1)} if levels else {"n": value}


def tool_of(properties: dict[str, Any], defs: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    parameters = {"type": "object", "properties": properties, "$defs": defs}
    return ({"type": "function", "function": {"name": "go", "parameters": parameters}},)


def test_a_schema_that_contains_itself_holds_at_every_depth() -> None:
    node = {"type": "object", "properties": {"n": {"type": "integer"}, "in": {"$ref": "#/$defs/Node"}}}
    tool = tool_of({"items": {"$ref": "#/$defs/Node"}}, {"Node": node})
    for name in FAMILIES:
        model, calls, tree = model_of(name), TABLE[name].calls, {"items": nested(2, 9)}
        assert model.write(calls.written([("go", tree)]), tools=tool)[2] == [tree], name
        with pytest.raises(AssertionError, match="forbidden"):
            model.write(calls.written([("go", {"items": nested("two", 9)})]), tools=tool)


def test_blocks_of_many_kinds_that_contain_each_other_are_one_rule_each() -> None:
    """As a page of blocks has them: a rule for every path of five took minutes."""
    kinds = range(20)
    block = {"anyOf": [{"$ref": f"#/$defs/B{kind}"} for kind in kinds]}
    defs: dict[str, Any] = {
        f"B{kind}": {
            "type": "object", "required": ["kind"],
            "properties": {"kind": {"const": f"b{kind}"}, "item": block, "items": {"type": "array", "items": block}},
        }
        for kind in kinds
    }  # fmt: skip
    page = {"page": {"kind": "b3", "item": {"kind": "b1"}, "items": [{"kind": "b19", "items": [{"kind": "b0"}]}]}}
    for name in FAMILIES:
        model, calls = model_of(name), TABLE[name].calls
        script = calls.written([("go", page)])
        assert model.write(script, tools=tool_of({"page": block}, defs))[2] == [page], name
        with pytest.raises(AssertionError, match="forbidden"):
            model.write(script.replace("b0", "c0"), tools=tool_of({"page": block}, defs))


def test_options_that_lead_back_to_themselves_have_an_end() -> None:
    """Only a string fits: the other option is this schema again."""
    again = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string", "minLength": 2}]}
    tool = tool_of({"p": again}, {"A": again})
    for name in FAMILIES:
        script = TABLE[name].calls.written([("go", {"p": "ab"})])
        assert model_of(name).write(script, tools=tool)[2] == [{"p": "ab"}], name


def test_what_json_holds_is_not_named() -> None:
    assert not unenforced("function-xml", VALUES["anyOf"][0])


@pytest.mark.parametrize(
    ("pattern", "whole"),
    [
        ("^a$", "(a)"), ("a", "(.|\\n)*(a)(.|\\n)*"), ("^a\\$", "(a\\$)(.|\\n)*"), ("^a\\\\$", "(a\\\\)"),
        ("^(a|b)$|[|/]\n", "((a|b))|(.|\\n)*([|\\/]\\n)(.|\\n)*"), ("\\|", "(.|\\n)*(\\|)(.|\\n)*"),
    ],
)  # fmt: skip
def test_a_search_becomes_the_expression_of_whole_texts(pattern: str, whole: str) -> None:
    assert whole_text_regex(pattern) == whole
