"""What models of many families write is understood, and the grammar of their calls allows it, token by token."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import AddedToken

from pipelines.chat.grammars.building import build_grammar
from pipelines.chat.grammars.constraints import Constraint, path_to_end
from pipelines.chat.prompts.chat_template import ChatTemplates
from pipelines.chat.steps.detokenize import ChoiceOutput
from pipelines.chat.steps.sampling import SampledToken
from pipelines.chat.syntax.calls import CONTENT
from pipelines.chat.syntax.families import TABLE, choose
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.chat.syntax.output_syntax import OutputSyntax, ThoughtState, marker_text
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.protocol.chat import ChatJob, ChatSpec, JsonFormat, ReasoningDelta, TextDelta, ToolCallDelta
from starters.chat.tokens import make_tokenizer
from tests.support.chat_outputs import AFTER_ANSWER, BEFORE_ANSWER, CASES, CITY, TOOLS
from tests.support.chat_templates import FAMILIES


class Model:
    """A tokenizer in which a family's marks are tokens, and its syntax."""

    def __init__(self, name: str, words: Sequence[str] = ()) -> None:
        """`words` are further tokens, whose text is no mark."""
        self.tokenizer = make_tokenizer([])
        self.tokenizer.response_template = None
        marks = CASES[name][0].split()
        self.tokenizer.add_tokens(marks, special_tokens=True)
        self.tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
        self.table = TokenTable(self.tokenizer, [self.tokenizer.eos_token_id])
        self.syntax = OutputSyntax.of(self.tokenizer, " ".join([*TABLE[name].marks, *marks]))

    def deltas(self, script: str, thoughts: ThoughtState = "free", **job: Any) -> tuple[list[Any], Any]:
        """Return the deltas and the finish reason of a model that writes the script, if the grammar lets it. A mark
        with a zero in it is no token, but spelled."""
        request = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, **job)
        required = request.tool_choice == "required"
        fields = self.syntax.parser_fields(tools=bool(request.tools), required=required)
        form = self.syntax.call_format(required=required) if request.tools else None
        prefix = self.syntax.thoughts.opening if self.syntax.thoughts and thoughts == "open" else ""
        markers = marker_text(fields, form)
        visible = frozenset(token for token, text in self.table.special.items() if text in markers)
        inputs = frozenset(request.input_grammars)
        parser = OutputParser(fields, prefix, request.tools, form, by_grammar=inputs)
        output = ChoiceOutput(0, self.table, (), parser, visible)
        grammar = build_grammar(self.table, request, self.syntax, thoughts)
        constraint = Constraint(self.table, grammar) if grammar else None
        deltas: list[Any] = []
        for token in self.tokens(script):
            if constraint is not None:
                assert constraint._matcher.validate_tokens([token]), f"forbidden: {self.tokenizer.decode([token])!r}"
                constraint.accept(token)
            deltas += output.feed(SampledToken(token))
        output.end("stop")
        return [*deltas, *output.flush()], output.finish_reason

    def tokens(self, script: str) -> list[int]:
        """Return the tokens of the script's parts, which zeros divide."""
        return [token for part in script.split("\0") for token in self.tokenizer.encode(part, add_special_tokens=False)]

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


NO_ORDER = {"harmony"}  # a call is a message with a header, which no text holds


@pytest.mark.parametrize("name", [name for name in TABLE if name not in NO_ORDER])
def test_calls_are_written_as_they_are_read(name: str) -> None:
    """A template that shows no calls gets them as text: the text that the model itself would write."""
    calls = TABLE[name].calls
    nested = {"city": "Paris", "opts": {"a": [1, 2], "b": True}, "say": 'a "b"\nc'}
    asked = [("get_weather", nested), ("forecast", {"city": "Bonn"})][: 2 if calls.repeats else 1]
    properties = {**CITY["properties"], "opts": {"type": "object"}, "say": {"type": "string"}}
    tools = tuple(
        {"type": "function", "function": {"name": called, "parameters": {"type": "object", "properties": properties}}}
        for called, _ in asked
    )
    parser = OutputParser({**calls.parser_fields(), **CONTENT}, "", tools, calls)
    pieces = [piece for character in calls.written(asked) for piece in parser.feed(character)] + parser.flush()
    found: dict[int, list[str]] = {}
    for piece in pieces:
        assert isinstance(piece, ToolCallDelta), pieces
        found.setdefault(piece.index, []).append(piece.arguments)
    assert [json.loads("".join(texts)) for texts in found.values()] == [arguments for _, arguments in asked]


SHOWN = {
    "apriel": "tool-calls-list", "gpt-oss": "harmony", "hermes-3": "hermes", "kimi-k2": "kimi", "llama-3.1": "json",
    "olmo-3": "function-calls", "qwen3": "hermes",
}  # fmt: skip


@pytest.mark.parametrize("family", SHOWN)
def test_a_template_shows_its_syntax_by_the_call_that_it_writes(family: str) -> None:
    tokenizer = make_tokenizer([])
    tokenizer.response_template = None
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    templates = ChatTemplates.of(tokenizer, FAMILIES[family])
    assert OutputSyntax.of(tokenizer, templates.text, shown=templates.shown_call).name == SHOWN[family]


def test_marks_that_a_template_mentions_do_not_outweigh_the_call_that_it_writes() -> None:
    written = "<|tool_call_start|>[qzcalled(city='qzvaluea')]<|tool_call_end|><|im_end|>"
    mentions = "Never write <tool_call> or <function=f>. <arg_key>"
    assert choose(mentions, "qwen3", {"<tool_call>"}, written) == "lfm2"
    assert choose(mentions, "qwen3", {"<tool_call>"}, "") == "glm"
    assert choose(mentions, "qwen3", {"<tool_call>"}, "call qzcalled with city=qzvaluea") is None


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", CASES)
def test_thoughts_and_calls_of_a_family_are_allowed_and_understood(name: str, choice: str) -> None:
    _, thoughts, calls, expected = CASES[name]
    reasoning, text, found, finish = Model(name).write(thoughts + calls, tools=TOOLS, tool_choice=choice)
    assert (text.strip(), found, finish) == ("", expected, "tool_calls")
    assert bool(reasoning) == bool(thoughts)
    assert not thoughts or reasoning in thoughts


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", CASES)
def test_calls_of_a_family_may_begin_close_to_the_limit_of_tokens(name: str, choice: str) -> None:
    """What begins can be closed: else its first mark would be forbidden long before the limit."""
    model = Model(name)
    request = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=TOOLS, tool_choice=choice)  # type: ignore[arg-type]
    grammar = build_grammar(model.table, request, model.syntax, "free")
    assert grammar
    constraint = Constraint(model.table, grammar)
    tokens = model.tokenizer.encode(CASES[name][2], add_special_tokens=False)
    for token in tokens[:-1]:
        marks = token in model.table.control_tokens.values()
        assert not marks or constraint.closing_token(token, 240) is None, model.tokenizer.decode([token])
        constraint.accept(token)


ENDLESS = [name for name, case in CASES.items() if "Paris" in case[2]]  # calls with an argument that is a text


@pytest.mark.parametrize("name", ENDLESS)
def test_an_argument_without_end_is_closed_before_the_tokens_run_out(name: str) -> None:
    model = Model(name)
    request = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=TOOLS, tool_choice="required")
    grammar = build_grammar(model.table, request, model.syntax, "free")
    assert grammar
    constraint = Constraint(model.table, grammar)
    begun, _, _ = CASES[name][2].partition("Paris")
    script = model.tokenizer.encode(begun, add_special_tokens=False)
    (endless,) = model.tokenizer.encode("x", add_special_tokens=False)
    for remaining in range(300, 0, -1):
        token = script.pop(0) if script else endless
        if constraint.near_limit(remaining):
            token = constraint.closing_token(token, remaining) or token
        if token in model.table.eos_ids:
            break
        constraint.accept(token)
    assert constraint.complete or constraint._matcher.is_accepting()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1] or name in BEFORE_ANSWER])
def test_a_familys_thoughts_are_not_in_the_answer(name: str) -> None:
    for tools, thoughts in product(((), TOOLS), (CASES[name][1], "")):
        answer = f"{thoughts}{BEFORE_ANSWER.get(name, '')}It rains.{AFTER_ANSWER.get(name, '')}"
        reasoning, text, found, finish = Model(name).write(answer, tools=tools)
        assert (text, found, finish) == ("It rains.", [], "stop")
        assert bool(reasoning) == bool(thoughts)


NESTED = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/Place"},
        "other": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "all": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        "unit": {"allOf": [{"$ref": "#/$defs/Unit"}]},
        "note": {"type": ["string", "null"]},
        "any": {},
    },
    "required": ["place"],
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {
                "x": {"type": "integer"}, "near": {"type": "boolean"},
                "names": {"type": "array", "items": {"type": "string"}}, "in": {"$ref": "#/$defs/Place"},
            },
            "required": ["x"],
        },
        "Unit": {"type": "string", "enum": ["km", "mi"]},
    },
}  # fmt: skip
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"place": {"x": 1, "near": True}},
    {"place": {"x": 1, "names": ["a", "it's"]}, "other": None},
    {"place": {"x": 1, "in": {"x": 2, "in": {"x": 3}}}, "other": {"x": -2, "near": False}},
    {"place": {"x": 1}, "all": [{"x": 2}, {"x": 3}], "unit": "km", "note": None},
    {"place": {"x": 1}, "note": 'say "b"\n', "any": {"b": ["c", 1.5, None, True]}},
)
HEADED = {"harmony", "muse"}  # a call is a message with a header, which is not in the text that a template shows


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_arguments_of_any_shape_are_allowed_and_understood(name: str, choice: str) -> None:
    """As pydantic and MCP servers describe them: objects in objects that refer to each other, lists, unions, nulls."""
    model, calls = Model(name), TABLE[name].calls
    tools = ({"type": "function", "function": {"name": "go", "parameters": NESTED}},)
    for arguments in ARGUMENTS:
        _, text, found, _ = model.write(calls.written([("go", arguments)]), tools=tools, tool_choice=choice)
        assert (text, found) == ("", [arguments])


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_names_of_any_characters_are_understood(name: str) -> None:
    model, calls = Model(name), TABLE[name].calls
    keys = ("user-id", "$filter", "@type", "a.b", "a b", "x/y", "日本", "_", "2d")
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys}}
    tools = ({"type": "function", "function": {"name": "get-it_now", "parameters": schema}},)
    for arguments in [{key: "v"} for key in keys] + [dict.fromkeys(keys, "v")]:
        assert model.write(calls.written([("get-it_now", arguments)]), tools=tools)[:3] == ("", "", [arguments])


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADED])
def test_white_space_before_a_required_call_is_no_text(name: str) -> None:
    *_, calls, expected = CASES[name]
    _, text, found, _ = Model(name).write(f"\n\n{calls}", tools=TOOLS, tool_choice="required")
    assert (text, found) == ("", expected)


def test_a_string_in_single_quotes_can_be_closed() -> None:
    model = Model("lfm2")
    request = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=TOOLS, tool_choice="required")
    grammar = build_grammar(model.table, request, model.syntax, "free")
    assert grammar
    constraint = Constraint(model.table, grammar)
    for token in model.tokenizer.encode("<|tool_call_start|>[get_weather(city='a", add_special_tokens=False):
        constraint.accept(token)
    path = path_to_end(model.table.grammar, constraint._matcher, constraint._endings)
    assert path
    assert len(path) < 20


@pytest.mark.parametrize("word", ["It", "日", "😀"])
@pytest.mark.parametrize("name", ["functionary", "harmony", "hermes", "muse"])
def test_the_tokens_of_logprobs_are_the_text(name: str, word: str) -> None:
    model = Model(name)
    markers = marker_text(model.syntax.fields, None)
    visible = frozenset(token for token, text in model.table.special.items() if text in markers)
    output = ChoiceOutput(0, model.table, ("STOP",), OutputParser(model.syntax.fields, ""), visible)
    script = f"{CASES[name][1]}{BEFORE_ANSWER.get(name, '')}{word} rains é. ST STOP"
    tokens = model.tokenizer.encode(script, add_special_tokens=False)
    deltas = [delta for token in tokens for delta in output.feed(SampledToken(token, -1.0))] + output.flush()
    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    assert "".join(delta.text for delta in texts) == f"{word} rains é. ST "
    assert [b"".join(one.data for one in delta.logprobs).decode() for delta in texts] == [delta.text for delta in texts]


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1]])
def test_a_schema_is_followed_behind_thoughts(name: str) -> None:
    end = BEFORE_ANSWER.get(name, "")
    _, text, _, _ = Model(name).write(f'{CASES[name][1]}{end}{{"city": "Bonn"}}', format=JsonFormat(CITY))
    assert json.loads(text) == {"city": "Bonn"}


def test_nothing_is_said_before_a_value_of_a_schema() -> None:
    model = Model("harmony")
    said = "<|channel|>commentary<|message|>Here it is.<|end|><|start|>assistant<|channel|>final<|message|>"
    with pytest.raises(AssertionError, match="forbidden: 'c'"):
        model.write(f'{said}{{"city": "Bonn"}}', format=JsonFormat(CITY))


@pytest.mark.parametrize(
    "answer", ["Write `<think>` to think.", "Say `<tool_call>` to call.", '{"answer": "in JSON"}', "2 < 3"]
)
def test_what_is_about_marks_is_text(answer: str) -> None:
    assert Model("hermes").write(answer, tools=TOOLS)[:3] == ("", answer, [])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "answer", ["See <mark>it</mark> <b>and</b>\n <i>all</i>", 'A<link>\n\n"b" <th>c</think>\n "d" .']
)
def test_a_text_like_the_end_of_a_mark_does_not_wait_for_the_end_of_the_answer(name: str, answer: str) -> None:
    syntax = Model(name).syntax
    parser = OutputParser(
        syntax.parser_fields(tools=True, required=False), "", TOOLS, syntax.call_format(required=False)
    )
    sent = [piece for character in answer for piece in parser.feed(character)]
    assert all(isinstance(piece, TextDelta) for piece in sent)
    assert answer.startswith("".join(piece.text for piece in sent if isinstance(piece, TextDelta)))
    assert sum(len(piece.text) for piece in sent if isinstance(piece, TextDelta)) > len(answer) - 12


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
    calls = [piece for piece in pieces if isinstance(piece, ToolCallDelta)]
    assert len(pieces) == len(calls) > 2
    assert calls[0].name == "get_weather"
    assert "".join(piece.arguments for piece in calls).startswith(arguments)
