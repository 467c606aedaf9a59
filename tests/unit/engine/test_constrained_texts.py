"""What stands beside calls under the grammar of text with calls: any text may end, and every call that begins is held
to its tool, whether the family's marks are tokens or not."""

from pathlib import Path

import pytest

from pipelines.chat.grammars.building import build_grammar
from pipelines.chat.grammars.constraints import Constraint
from pipelines.chat.steps.detokenize import ChoiceOutput
from pipelines.chat.steps.sampling import SampledToken
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.chat.syntax.output_syntax import marker_text
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.protocol.chat import ChatJob, ChatSpec, TextDelta
from starters.chat.tokens import make_tokenizer
from tests.support.chat_outputs import AFTER_ANSWER, BEFORE_ANSWER, CASES, TOOLS
from tests.unit.engine.test_output_families import Model

SPELLED = [name for name in CASES if name not in ("harmony", "solar", "kimi-tags", "muse")]  # their headers are tokens
MUSE = CASES["muse"][2]


def model(name: str, marks: str) -> Model:
    """Return the family's model; with its marks as tokens, or with none."""
    made = Model(name)
    if marks == "spelled":
        made.tokenizer = make_tokenizer([])
        made.table = TokenTable(made.tokenizer, [made.tokenizer.eos_token_id])
    return made


def refused(written: Model, script: str) -> str | None:
    """Return the first token that the grammar forbids; the end where the answer may not end."""
    request = ChatJob("j", ChatSpec("m", Path("m")), (), 0, 1.0, tools=TOOLS)
    grammar = build_grammar(written.table, request, written.syntax, "free")
    assert grammar
    constraint = Constraint(written.table, grammar)
    for token in [*written.tokens(script), written.table.eos_id]:
        if not constraint.token_mask()[token]:
            return str(written.tokenizer.decode([token]))
        constraint.accept(token)
    return None


@pytest.mark.parametrize("marks", ["tokens", "spelled"])
@pytest.mark.parametrize("name", CASES)
def test_any_text_may_end(name: str, marks: str) -> None:
    if marks == "spelled" and name not in SPELLED:
        pytest.skip("its headers are tokens")
    for answer in ("It rains.", 'It\'s raining `a` "b" {x} [1] <b>.', "'"):
        assert refused(model(name, marks), f"{BEFORE_ANSWER.get(name, '')}{answer}{AFTER_ANSWER.get(name, '')}") is None


@pytest.mark.parametrize("marks", ["tokens", "spelled"])
@pytest.mark.parametrize("name", [name for name in SPELLED if name not in ("json", "functionary")])
def test_a_call_behind_any_text_is_one_of_the_tools(name: str, marks: str) -> None:
    written, (*_, calls, _) = model(name, marks), CASES[name]
    for before in ("It's so:\n", 'A `b` "c"\n\n', "<|im_start|>\n"):
        assert refused(written, before + calls) is None
        assert refused(written, before + calls.replace("get_weather", "no_such_tool")) == "n"


def test_functionarys_call_behind_text_follows_its_schema() -> None:
    call = 'all\nIt\'s so:\n>>> ls\n>>>get_weather\n{"city": "Paris", "days": 3}'
    assert refused(Model("functionary"), call) is None
    assert refused(Model("functionary"), call.replace("3}", '"three"}')) == '"'


@pytest.mark.parametrize(
    ("script", "refuses"),
    [
        (MUSE, None),
        (f"{CASES['muse'][1]}{MUSE}", None),
        (f" to=user<|message|>Let's see.<|eom|><|start|>assistant{MUSE}", None),
        (f"{MUSE}<|eom|><|start|>assistant{MUSE}", None),
        (MUSE.replace("to=get_weather", "to=forecast"), "g"),
        (MUSE.replace("get_weather", "no_such_tool"), "<|message|>"),
        (f" to=user<|message|>Let's see.<|eom|><|start|>assistant{MUSE.replace('>3<', '>three<')}", "t"),
        (" to=get_weather<|message|>Hello", "H"),
    ],
)
def test_muses_call_is_of_the_tool_in_its_header(script: str, refuses: str | None) -> None:
    assert refused(Model("muse"), script) == refuses


def test_a_required_call_of_muse_is_of_the_tool_in_its_header() -> None:
    with pytest.raises(AssertionError, match="forbidden: 'g'"):
        Model("muse").write(MUSE.replace("to=get_weather", "to=forecast"), tools=TOOLS, tool_choice="required")


@pytest.mark.parametrize(("name", "before"), [("deepseek-dsml", "<"), ("gigachat", "function call")])
def test_an_opening_mark_is_whole_though_a_part_of_it_is_a_token(name: str, before: str) -> None:
    call = CASES[name][2]
    assert refused(Model(name), f"It's so:\n{call}") is None
    assert refused(Model(name), f"It's so:\n{call.removeprefix(before)}") in ("｜DSML｜", "<|role_sep|>")


@pytest.mark.parametrize("name", CASES)
def test_a_mark_that_was_cut_is_no_text(name: str) -> None:
    written, (_, thoughts, calls, _) = Model(name), CASES[name]
    form, fields = written.syntax.call_format(required=False), written.syntax.parser_fields(tools=True, required=False)
    markers = marker_text(fields, form)
    visible = frozenset(token for token, mark in written.table.special.items() if mark in markers)
    tokens = written.tokens(thoughts + calls)
    for cut in range(len(tokens)):
        output = ChoiceOutput(0, written.table, (), OutputParser(fields, "", TOOLS, form), visible)
        deltas = [delta for token in tokens[:cut] for delta in output.feed(SampledToken(token))]
        output.end("length")
        text = "".join(delta.text for delta in [*deltas, *output.flush()] if isinstance(delta, TextDelta))
        assert not [mark for mark in written.table.control_tokens if mark in text], text


@pytest.mark.parametrize("marks", ["tokens", "spelled"])
@pytest.mark.parametrize("name", [name for name in SPELLED if name != "json"])
def test_what_follows_a_call_is_text_or_is_not_written(name: str, marks: str) -> None:
    """Calls that no mark ends last to the end of the answer."""
    (*_, calls, expected), ends = CASES[name], TABLE[name].calls.outer_end or TABLE[name].calls.end
    before = "all\nIt's so.\n>>>" if name == "functionary" else "It's so.\n"
    assert refused(model(name, marks), before + calls) is None
    assert refused(model(name, marks), f"{before}{calls}Done.") == (None if ends else "D")
    if ends and marks == "tokens":
        assert Model(name).write(f"{calls}\n\nDone.", tools=TOOLS)[1:3] == ("Done.", expected)
