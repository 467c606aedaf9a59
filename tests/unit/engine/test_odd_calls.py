"""Calls of odd names and odd contents: what a grammar lets a family write is understood."""

import json
from typing import Any

import pytest

from pipelines.chat.syntax.calls import CONTENT
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.protocol.chat import ToolCallDelta
from tests.support.chat_outputs import CASES, CITY, TOOLS
from tests.unit.engine.test_output_families import HEADED, Model


def _tool(parameters: dict[str, Any], name: str) -> tuple[dict[str, Any], ...]:
    return ({"type": "function", "function": {"name": name, "parameters": parameters}},)


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_a_tool_of_any_name_can_be_called(name: str) -> None:
    model, calls = Model(name), TABLE[name].calls
    for called in ("default_api:get", "mcp.server:get-it", "a.b-c_d"):
        script = calls.written([(called, {"city": "Paris"})])
        deltas, _ = model.deltas(script, tools=(*_tool(CITY, called[:-1]), *_tool(CITY, called)))
        assert [delta.name for delta in deltas if getattr(delta, "name", None)] == [called], deltas


def test_a_dot_in_a_name_is_a_dot() -> None:
    script = "<|channel|>commentary to=functions.axb <|constrain|>json<|message|>{}"
    with pytest.raises(AssertionError, match="forbidden: 'x'"):
        Model("harmony").write(script, tools=_tool({}, "a.b"))


def test_a_name_ends_where_its_header_goes_on() -> None:
    script = "<|channel|>commentary to=functions.get_weatherjson <|message|>"
    with pytest.raises(AssertionError, match="forbidden: 'j'"):
        Model("harmony").write(script, tools=TOOLS)


@pytest.mark.parametrize(
    ("written", "city"),
    [
        (r"C:\users\bob", "C:\\users\bob"),
        (r"\x41\u00e9\U0001F600\ud83d\ude00", "Aé😀😀"),
        (r"it\'s \u12 \q", r"it's \u12 \q"),
    ],
)
def test_escapes_in_single_quotes_are_pythons(written: str, city: str) -> None:
    script = f"<|tool_call_start|>[get_weather(city='{written}')]<|tool_call_end|>"
    assert Model("lfm2").write(script, tools=TOOLS)[2] == [{"city": city}]


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_arguments_that_are_no_json_are_texts(number: str) -> None:
    calls = TABLE["function-xml"].calls
    parser = OutputParser({**calls.parser_fields(), **CONTENT}, "", TOOLS, calls)
    argument = f"<parameter=days>\n{number}\n</parameter>"
    written = f"<tool_call>\n<function=get_weather>\n{argument}\n</function>\n</tool_call>"
    pieces = [*parser.feed(written), *parser.flush()]
    assert "".join(piece.arguments for piece in pieces if isinstance(piece, ToolCallDelta)) == f'{{"days": "{number}"}}'


def test_a_list_of_calls_may_begin_with_space() -> None:
    script = '<|python_start|>[\n  get_weather(city="Paris", days=3)\n]<|python_end|>'
    assert Model("llama4-pythonic").write(script, tools=TOOLS)[1:3] == ("", [{"city": "Paris", "days": 3}])


def test_arguments_may_hold_what_stands_between_calls() -> None:
    script = 'get_weather\n{"city": ">>> print()"}>>> \nforecast\n{"city": "Bonn"}'
    assert Model("functionary").write(script, tools=TOOLS)[1:3] == ("", [{"city": ">>> print()"}, {"city": "Bonn"}])


def test_arguments_may_have_fences() -> None:
    calls = TABLE["command-r"].calls
    arguments = {"city": "```sh\nls\n```"}
    parser = OutputParser({**calls.parser_fields(), **CONTENT}, "", TOOLS, calls)
    script = calls.written([("get_weather", arguments), ("forecast", arguments)])
    pieces = [piece for character in script for piece in parser.feed(character)] + parser.flush()
    found = [piece for piece in pieces if isinstance(piece, ToolCallDelta)]
    assert (len(found), parser.call_count) == (len(pieces), 2)
    assert "".join(piece.arguments for piece in found) == 2 * json.dumps(arguments)
