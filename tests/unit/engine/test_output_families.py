"""What models of many families write is understood, and the grammar of their calls allows it, token by token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.chat.constraints import Constraint
from pipelines.chat.detokenize import ChoiceOutput
from pipelines.chat.grammars import build_grammar
from pipelines.chat.output_parser import OutputParser
from pipelines.chat.sampling import SampledToken
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.output_syntax import OutputSyntax, ThoughtState, marker_text
from pipelines.chat.syntax.pieces import ToolCallPiece
from pipelines.chat.tokens import TokenTable
from pipelines.protocol.chat import ChatJob, ChatSpec, JsonFormat, ReasoningDelta, TextDelta, ToolCallDelta
from starters.chat.tokens import make_tokenizer

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("get_weather", "forecast")
)
PARIS, BONN = {"city": "Paris", "days": 3}, {"city": 'a "b"'}
XML = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
INVOKE = 'invoke name="get_weather">\n'
# by syntax: marks that are tokens, thoughts as it writes them, one call or two, and their arguments
CASES: dict[str, tuple[str, str, str, list[Any]]] = {
    "harmony": (
        "<|channel|> <|message|> <|start|> <|end|> <|constrain|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris","days":3}',
        [PARIS],
    ),
    "gemma4": (
        '<|tool_call> <tool_call|> <|channel> <channel|> <|"|>',
        "<|channel>thought\nHm.<channel|>",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:forecast{city:<|"|>a "b"<|"|>}<tool_call|>',
        [PARIS, BONN],
    ),
    "mistral-call-id": (
        "[TOOL_CALLS] [CALL_ID] [ARGS] [THINK] [/THINK]",
        "[THINK]Hm.[/THINK]",
        '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris", "days": 3}'
        '[TOOL_CALLS]forecast[CALL_ID]abc123deg[ARGS]{"city": "a \\"b\\""}',
        [PARIS, BONN],
    ),
    "mistral-args": (
        "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
        "[THINK]Hm.[/THINK]",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
        [PARIS],
    ),
    "mistral-list": (
        "[TOOL_CALLS]",
        "",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}, "id": "abc123def"}, '
        '{"name": "forecast", "arguments": {"city": "a \\"b\\""}}]',
        [PARIS, BONN],
    ),
    "deepseek-dsml": (
        "｜DSML｜ <think> </think>",
        "<think>Hm.</think>",
        f'<｜DSML｜function_calls>\n<｜DSML｜{INVOKE}<｜DSML｜parameter name="city" string="true">Paris'
        "</｜DSML｜parameter>\n"
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [PARIS],
    ),
    "deepseek-r1": (
        "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>",
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [PARIS],
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>",
        "",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", "days": 3}'
        '<｜tool▁call▁end｜><｜tool▁call▁begin｜>forecast<｜tool▁sep｜>{"city": "a \\"b\\""}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        [PARIS, BONN],
    ),
    "kimi": (
        "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_end|> "
        "<|tool_call_argument_begin|>",
        "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
        [PARIS],
    ),
    "minimax": (
        "<minimax:tool_call> </minimax:tool_call> <think> </think>",
        "<think>Hm.</think>\n\n",
        f'<minimax:tool_call>\n<{INVOKE}<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="forecast">\n<parameter name="city">a "b"'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
        [PARIS, BONN],
    ),
    "seed": (
        "<seed:tool_call> </seed:tool_call> <seed:think> </seed:think>",
        "<seed:think>Hm.</seed:think>",
        f"<seed:tool_call>\n{XML}</seed:tool_call>",
        [PARIS],
    ),
    "glm": (
        "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <think> </think>",
        "\n<think>Hm.</think>\n",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n"
        '<tool_call>forecast<arg_key>city</arg_key><arg_value>a "b"</arg_value></tool_call>',
        [PARIS, BONN],
    ),
    "function-xml": (
        "<tool_call> </tool_call> <think> </think>",
        "<think>\nHm.\n</think>\n\n",
        f"<tool_call>\n{XML}</tool_call>\n<tool_call>\n"
        '<function=forecast>\n<parameter=city>\na "b"\n</parameter>\n</function>\n</tool_call>',
        [PARIS, BONN],
    ),
    "lfm2": (
        "<|tool_list_start|> <|tool_call_start|> <|tool_call_end|>",
        "",
        '<|tool_call_start|>[get_weather(city="Paris", days=3), forecast(city=\'a "b"\')]<|tool_call_end|>',
        [PARIS, BONN],
    ),
    "llama4-pythonic": (
        "<|python_start|> <|python_end|>",
        "",
        '<|python_start|>[get_weather(city="Paris", days=3)]<|python_end|>',
        [PARIS],
    ),
    "apertus": (
        "<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>",
        "<|inner_prefix|>Hm.<|inner_suffix|>",
        '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 3}}, {"forecast": {"city": "a \\"b\\""}}]'
        "<|tools_suffix|>",
        [PARIS, BONN],
    ),
    "command-r7b": (
        "<|START_ACTION|> <|END_ACTION|> <|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>",
        "<|START_THINKING|>Hm.<|END_THINKING|>",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", '
        '"days": 3}},\n    {"tool_call_id": "1", "tool_name": "forecast", "parameters": {"city": "a \\"b\\""}}\n]'
        "<|END_ACTION|>",
        [PARIS, BONN],
    ),
    "phi4": (
        "<|tool_call|> <|/tool_call|>",
        "",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]<|/tool_call|>',
        [PARIS],
    ),
    "granite3": (
        "<|tool_call|>",
        "",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]',
        [PARIS],
    ),
    "hermes": (
        "<tool_call> </tool_call> <think> </think>",
        "<think>\nI could write <tool_call> now.\n</think>\n\n",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name":"forecast","arguments":{"city":"a \\"b\\""}}\n</tool_call>',
        [PARIS, BONN],
    ),
    "json": ("<|python_tag|>", "", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}', [PARIS]),
}


class Model:
    """A tokenizer in which a family's marks are tokens, and its syntax."""

    def __init__(self, name: str) -> None:
        self.tokenizer = make_tokenizer([])
        self.tokenizer.response_template = None
        marks = CASES[name][0].split()
        self.tokenizer.add_tokens(marks, special_tokens=True)
        self.table = TokenTable(self.tokenizer, [self.tokenizer.eos_token_id])
        self.syntax = OutputSyntax.of(self.tokenizer, " ".join([*TABLE[name].marks, *marks]))

    def deltas(self, script: str, thoughts: ThoughtState = "free", **job: Any) -> tuple[list[Any], Any]:
        """Return the deltas and the finish reason of a model that writes the script, if the grammar lets it."""
        request = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, **job)
        required = request.tool_choice == "required"
        fields = self.syntax.parser_fields(tools=bool(request.tools), required=required)
        form = self.syntax.call_format(required=required) if request.tools else None
        prefix = self.syntax.thoughts.opening if self.syntax.thoughts and thoughts == "open" else ""
        markers = marker_text(fields, form)
        visible = frozenset(token for token, text in self.table.special.items() if text in markers)
        output = ChoiceOutput(0, self.table, (), OutputParser(fields, prefix, request.tools, form), visible)
        grammar = build_grammar(self.table, request, self.syntax, thoughts)
        constraint = Constraint(self.table, grammar) if grammar else None
        deltas: list[Any] = []
        for token in self.tokenizer.encode(script, add_special_tokens=False):
            if constraint is not None:
                mask: torch.Tensor = constraint.token_mask()
                assert mask[token], f"forbidden: {self.tokenizer.decode([token])!r}"
                constraint.accept(token)
            deltas += output.feed(SampledToken(token))
        output.end("stop")
        return [*deltas, *output.flush()], output.finish_reason

    def write(self, script: str, thoughts: ThoughtState = "free", **job: Any) -> tuple[str, str, list[Any], str | None]:
        """Return the same as reasoning, text, calls and finish reason."""
        deltas, finish = self.deltas(script, thoughts, **job)
        calls: dict[int, str] = {}
        for delta in deltas:
            if isinstance(delta, ToolCallDelta):
                calls[delta.index] = calls.get(delta.index, "") + delta.arguments
        reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        return reasoning, text, [json.loads(each) for each in calls.values()], finish


@pytest.mark.parametrize("name", CASES)
def test_a_familys_template_shows_its_syntax(name: str) -> None:
    assert Model(name).syntax.name == name


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", CASES)
def test_thoughts_and_calls_of_a_family_are_allowed_and_understood(name: str, choice: str) -> None:
    _, thoughts, calls, expected = CASES[name]
    reasoning, text, found, finish = Model(name).write(thoughts + calls, tools=TOOLS, tool_choice=choice)
    assert (text.strip(), found, finish) == ("", expected, "tool_calls")
    assert bool(reasoning) == bool(thoughts)
    assert not thoughts or reasoning in thoughts


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1]])
def test_a_familys_thoughts_are_not_in_the_answer(name: str) -> None:
    end = "<|channel|>final<|message|>" if name == "harmony" else ""
    for tools in ((), TOOLS):
        reasoning, text, found, finish = Model(name).write(f"{CASES[name][1]}{end}It rains.", tools=tools)
        assert (text, found, finish) == ("It rains.", [], "stop")
        assert reasoning


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1]])
def test_a_schema_is_followed_behind_thoughts(name: str) -> None:
    end = "<|channel|>final<|message|>" if name == "harmony" else ""
    _, text, _, _ = Model(name).write(f'{CASES[name][1]}{end}{{"city": "Bonn"}}', format=JsonFormat(CITY))
    assert json.loads(text) == {"city": "Bonn"}


@pytest.mark.parametrize(
    "answer", ["Write `<think>` to think.", "Say `<tool_call>` to call.", '{"answer": "in JSON"}', "2 < 3"]
)
def test_what_is_about_marks_is_text(answer: str) -> None:
    assert Model("hermes").write(answer, tools=TOOLS)[:3] == ("", answer, [])


def test_an_answer_in_json_is_no_call() -> None:
    answer = '{"person": "Bob"}'
    assert Model("json").write(answer, tools=TOOLS)[:3] == ("", answer, [])


@pytest.mark.parametrize(
    ("name", "script", "arguments"),
    [
        (
            "function-xml",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis and its surround",
            '{"city": "Paris',
        ),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Paris and', '{"city": "Paris and'),
        ("lfm2", '<|tool_call_start|>[get_weather(city="Paris and', '{"city": "Paris and'),
        ("harmony", '<|channel|>commentary to=functions.get_weather<|message|>{"city":"Pa', '{"city":"Pa'),
    ],
)
def test_a_call_that_was_cut_keeps_what_came(name: str, script: str, arguments: str) -> None:
    model = Model(name)
    form = model.syntax.call_format(required=False)
    parser = OutputParser(model.syntax.fields, "", TOOLS, form)
    pieces = [piece for character in script for piece in parser.feed(character)] + parser.flush()
    calls = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
    assert len(pieces) == len(calls) > 2
    assert calls[0].name == "get_weather"
    assert "".join(piece.arguments for piece in calls).startswith(arguments)
