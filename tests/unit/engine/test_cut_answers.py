"""An answer whose end the server wrote says that it was cut, and is valid all the same; what a model wrote is whole."""

import json
from collections.abc import Sequence as Tokens
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pipelines.chat.grammars.building import build_grammar
from pipelines.chat.grammars.constraints import Constraint
from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.request_builder import _budget, _output
from pipelines.chat.steps.decode_step import sample_step
from pipelines.chat.steps.sampling import SamplerState
from pipelines.chat.steps.sequence import Request, Sequence
from pipelines.protocol.chat import (
    ChatJob,
    ChatSampling,
    ChatSpec,
    ChoiceFinished,
    JsonFormat,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from tests.support.chat_outputs import CASES, TOOLS
from tests.unit.engine.test_output_families import ENDLESS, Model

GREEDY = ChatSampling(temperature=0.0)
TEXT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LIST = {"type": "object", "properties": {"all": {"type": "array", "items": {"type": "string"}}}, "required": ["all"]}


def answer(model: Model, script: str | Tokens[int], spec: ChatSpec | None = None, **options: Any) -> list[Any]:
    """Return the events of a model that wants to write the script and then the same token without an end, by the very
    step that samples a model's logits."""
    job = ChatJob("j", spec or ChatSpec("m", Path("m")), (), 0, 9.0, sampling=GREEDY, **options)
    syntax = replace(model.syntax, starts_open=False)
    checkpoint = cast(ChatCheckpoint, SimpleNamespace(syntax=syntax, tokens=model.table))
    events: list[Any] = []
    request = Request(job, checkpoint, (0,), {}, events.append, open_choices=1, started_at=0.0)
    grammar = build_grammar(model.table, job, syntax, "free")
    constraint = Constraint(model.table, grammar) if grammar else None
    output = _output(request, 0, "prompt")
    output.max_string = job.checkpoint.max_string if constraint else None
    budget = _budget(checkpoint, job.thinking_budget)
    row = Sequence(request, 0, SamplerState(GREEDY, 0), output, constraint, job.max_tokens, budget, [0])
    wanted = model.tokens(script) if isinstance(script, str) else list(script)
    while not row.finished:
        logits = torch.zeros(1, model.table.vocab_size)
        logits[0, wanted[min(len(row.tokens) - 1, len(wanted) - 1)]] = 50.0
        logits[0, model.table.eos_id] = 1.0  # where what it wants is not allowed, it ends
        sample_step([row], logits)
    return events


def said(events: Tokens[Any]) -> tuple[str, list[Any], str]:
    """Return the text, the arguments of the calls, and why it ended."""
    found: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            found[event.index] = found.get(event.index, "") + event.arguments
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    (end,) = (event for event in events if isinstance(event, ChoiceFinished))
    return text, [json.loads(arguments) for arguments in found.values()], end.reason


@pytest.mark.parametrize("name", ENDLESS)
def test_a_call_that_the_server_closed_was_cut(name: str) -> None:
    begun, _, _ = CASES[name][2].partition("Paris")
    choice = "auto" if name in ("hermes", "function-xml", "gemma4") else "required"
    _, (arguments, *_), reason = said(
        answer(Model(name), f"{begun}x", tools=TOOLS, tool_choice=choice, max_tokens=len(begun) + 120)
    )
    assert reason == "length"
    assert arguments["city"].startswith("xxxx")


@pytest.mark.parametrize("name", [name for name in CASES if len(CASES[name][3]) > 1])
def test_a_call_that_there_was_no_room_for_was_cut(name: str) -> None:
    model, calls = Model(name), CASES[name][2]
    tokens = len(model.tokens(calls)) - 6
    _, found, reason = said(answer(model, calls, tools=TOOLS, tool_choice="required", max_tokens=tokens))
    assert found
    assert reason == "length"


@pytest.mark.parametrize("name", CASES)
def test_calls_that_the_model_ended_were_not_cut(name: str) -> None:
    model = Model(name)
    script = [*model.tokens(CASES[name][2]), model.table.eos_id]
    for choice in ("auto", "required"):  # far from the limit: near it, the server may not let a call begin
        _, found, reason = said(answer(model, script, tools=TOOLS, tool_choice=choice, max_tokens=len(script) + 200))
        assert (found, reason) == (CASES[name][3], "tool_calls")


@pytest.mark.parametrize("name", ["hermes", "json", "harmony", "glm"])
@pytest.mark.parametrize(
    ("schema", "begun"),
    [(TEXT, '{"city": "x'), (LIST, '{"all": ["a", "x'), ({"type": "integer"}, "1"), (None, '{"a": {"b": "x')],
)
def test_a_value_that_the_server_closed_was_cut(name: str, schema: dict[str, Any] | None, begun: str) -> None:
    before = "<|channel|>final<|message|>" if name == "harmony" else ""
    text, _, reason = said(answer(Model(name), f"{before}{begun}", format=JsonFormat(schema), max_tokens=90))
    assert json.loads(text)
    assert reason == "length"


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_value_that_the_model_ended_was_not_cut(room: int) -> None:
    model = Model("hermes")
    value = '{"city": "Bonn"}'
    text, _, reason = said(answer(model, value, format=JsonFormat(TEXT), max_tokens=len(model.tokens(value)) + room))
    assert (text, reason) == (value, "stop")


def test_thoughts_that_the_server_closed_for_a_value_were_cut() -> None:
    events = answer(Model("hermes"), "<think>x", format=JsonFormat(TEXT), max_tokens=80)
    text, _, reason = said(events)
    assert (json.loads(text).keys(), reason) == ({"city"}, "length")
    assert any(isinstance(event, ReasoningDelta) for event in events)


def test_a_stop_string_that_the_server_wrote_stops_nothing() -> None:
    _, _, reason = said(answer(Model("hermes"), '{"city": "x', format=JsonFormat(TEXT), max_tokens=40, stop=('"}',)))
    assert reason == "length"


@pytest.mark.parametrize("name", [name for name in ENDLESS if name not in ("minimax-nested",)])
def test_a_string_at_the_bound_of_the_catalog_was_cut(name: str) -> None:
    """Strings between tags have no such bound: there the model goes on until its tokens run out."""
    begun, _, behind = CASES[name][2].partition("Paris")
    spec, model = ChatSpec("m", Path("m"), max_string=16), Model(name)
    script = [*model.tokens(f"{begun}{'x' * 40}{behind}"), model.table.eos_id]
    events = answer(model, script, spec, tools=TOOLS, tool_choice="required", max_tokens=500)
    _, (arguments, *_), reason = said(events)
    assert (len(arguments["city"]), reason) in ((16, "length"), (40, "tool_calls"))
    text, _, reason = said(answer(Model("hermes"), '{"city": "x', spec, format=JsonFormat(TEXT), max_tokens=500))
    assert (len(json.loads(text)["city"]), reason) == (16, "length")


LINE = "line of a file with <b>tags</b>, {braces}, [brackets], 'quotes' and </parameter> in it; " * 5


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", CASES)
def test_a_file_of_60_kilobytes_arrives_whole(name: str, choice: str) -> None:
    model = Model(name, [LINE])
    file = f"{LINE}\n" * (60_000 // len(LINE) + 1)
    begun, city, behind = CASES[name][2].partition("Paris")
    if not city:
        pytest.skip("no text in its calls")
    script = begun + (json.dumps(file)[1:-1] if '"Paris"' in CASES[name][2] else file) + behind
    _, (arguments, *_), reason = said(
        answer(model, [*model.tokens(script), model.table.eos_id], tools=TOOLS, tool_choice=choice)
    )
    assert (arguments["city"], reason) == (file, "tool_calls")
