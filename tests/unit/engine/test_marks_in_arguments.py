"""Marks of a family's own in the arguments of its calls: what a string holds is no mark."""

import json
import re
from typing import Any

import pytest

from pipelines.chat.syntax.calls import CONTENT
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.nested import NestedArguments
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.chat.syntax.tags import TagArguments
from pipelines.protocol.chat import TextDelta, ToolCallDelta
from tests.support.chat_outputs import CASES, CITY, TOOLS
from tests.unit.engine.test_output_families import HEADED, NO_ORDER, Model

CONTROLS = re.compile(r"<?\|[^|]*\|>?|｜DSML｜|</arg_value[^>]*>")


def read(name: str, script: str, size: int, **options: Any) -> tuple[list[Any], str]:
    """Return the arguments of all calls, and the text, of output that comes in pieces of this size."""
    calls = TABLE[name].calls
    parser = OutputParser({**calls.parser_fields(), **CONTENT}, "", TOOLS, calls, **options)
    pieces = [piece for at in range(0, len(script), size) for piece in parser.feed(script[at : at + size])]
    pieces += parser.flush()
    found: dict[int, str] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallDelta):
            found[piece.index] = found.get(piece.index, "") + piece.arguments
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    return [json.loads(arguments) for arguments in found.values()], text


def marks(name: str) -> list[str]:
    """Return the marks that the family can write in a string: all but what ends a string without quotes."""
    calls = TABLE[name].calls
    tail = "" if '"' in calls.tail else calls.tail
    all_of_them = (calls.outer_begin, calls.outer_end, calls.begin, calls.end, tail, calls.separator, "</think>")
    never = {end.strip() for end in calls.arguments.endings()}
    if isinstance(calls.arguments, NestedArguments):  # a token of its own before each tag
        never |= set(all_of_them) - {"</think>"}
    return [mark for mark in dict.fromkeys(mark.strip() for mark in all_of_them) if mark and mark not in never]


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("name", [name for name in TABLE if name not in NO_ORDER])
def test_marks_in_an_argument_are_a_part_of_it(name: str, size: int) -> None:
    calls = TABLE[name].calls
    for mark in marks(name):
        for city in (f"write {mark} here {mark}", mark, f'"{mark}"}}{mark}]'):
            asked: list[dict[str, Any]] = [{"city": city, "days": 3}, {"city": "Bonn"}][: 2 if calls.repeats else 1]
            script = calls.written(zip(("get_weather", "forecast"), asked, strict=False))
            assert read(name, script, size) == (asked, "")


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_marks_in_an_argument_are_allowed(name: str) -> None:
    """In other tokens than the mark's own: what is a token of its own is no text to the grammar of JSON."""
    model, calls = Model(name), TABLE[name].calls
    for mark in marks(name):
        script = calls.written([("get_weather", {"city": "a qzmark b"})]).replace("qzmark", "\0".join(mark))
        assert model.write(script, tools=TOOLS)[:3] == ("", "", [{"city": f"a {mark} b"}]), mark


@pytest.mark.parametrize("thought", ["closed", "free"])
def test_marks_that_are_tokens_are_allowed_in_texts_without_quotes(thought: Any) -> None:
    arguments = {"city": "write <tool_call> or </tool_call>\n", "days": 3}
    script = TABLE["function-xml"].calls.written([("get_weather", arguments)])
    assert Model("function-xml").write(script, thought, tools=TOOLS)[1:3] == ("", [arguments])


def test_a_closing_mark_is_whole_though_a_part_of_it_is_a_token() -> None:
    script = CASES["deepseek-dsml"][2].replace("Paris</", "Paris")
    with pytest.raises(AssertionError, match="forbidden: '｜DSML｜'"):
        Model("deepseek-dsml").write(script, tools=TOOLS)


TAGGED = [name for name in CASES if isinstance(TABLE[name].calls.arguments, TagArguments)]


@pytest.mark.parametrize("name", TAGGED)
def test_the_closing_tag_in_a_text_between_tags_is_a_part_of_it(name: str) -> None:
    """It ends a text where another tag or the end of the call follows it: any text can be a value."""
    calls, model = TABLE[name].calls, Model(name)
    style = calls.arguments
    assert isinstance(style, TagArguments)
    tag = style.closing
    texts = [
        f"a {tag} ends it.",
        f"{tag} b",
        f"a\n{tag}\nb\n",
        f"a{tag} {tag}\n  c",
        "a\n",
        "\n\na\n\n",
        "",
        "\n",
        tag[:-1],
    ]
    for text in texts:
        for asked in ({"city": text, "days": 3}, {"city": text}):
            script = calls.written([("get_weather", asked)])
            for size in (1, 3, 10_000):
                assert read(name, script, size) == ([asked], ""), (text, size)
            if model.table.control_tokens.keys().isdisjoint(CONTROLS.findall(tag)) and name not in HEADED:
                assert model.write(script, tools=TOOLS)[1:3] == ("", [asked]), text


BY_INPUT = [name for name in CASES if name not in NO_ORDER and TABLE[name].calls.arguments.input_opening]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", BY_INPUT)
def test_the_input_of_a_tool_with_a_grammar_is_what_was_written(name: str, several: bool) -> None:
    calls = TABLE[name].calls
    tools = ({"type": "function", "function": {"name": "go", "parameters": CITY}},)
    model, text = Model(name), "a [1] b"
    head = calls.head.replace("{name}", "go").replace("{number}", "0").replace("{id}", "a1b2c3d4e")
    one = f"{calls.begin}{head}{calls.arguments.input_opening}{text}{calls.end}"
    both = f"{one}{calls.separator}{one}" if several else one
    listed = f"[{both}]" if calls.lead == "[" else both
    header = calls.header.replace("{name}", "go")
    script = f"{header}{calls.outer_begin}{listed}{calls.outer_end}"
    job: dict[str, Any] = {"tools": tools, "input_grammars": {"go": 'start: "a [" /[0-9]/ "] b"'}}
    if several and calls.separator and not calls.end:  # nothing says where the first input ends
        with pytest.raises(AssertionError):
            model.write(script, tool_choice="required", **job)
        return
    for choice in ("auto", "required"):
        expected = [{"input": text}] * (2 if several and calls.repeats else 1)
        assert model.write(script, tool_choice=choice, **job)[1:3] == ("", expected)
