"""A budget of thoughts is held by the engine: the thought is closed as the family closes it, and the answer goes on."""

from typing import Any

import pytest

from pipelines.chat.prompts.template_traits import EffortTraits, TemplateTraits
from pipelines.chat.prompts.thinking import thinking_budget, unused_options
from pipelines.chat.steps.thinking_budget import ThinkingBudget
from pipelines.chat.syntax.known import LAST_WORDS, Thoughts
from pipelines.protocol.chat import ChatFinished, JsonFormat, ReasoningDelta, TextDelta, ToolCallDelta
from tests.support.chat_outputs import CASES, TOOLS
from tests.unit.engine.test_cut_answers import TEXT, answer, said
from tests.unit.engine.test_output_families import Model

THINKING = [name for name in CASES if CASES[name][1]]


def endless(name: str) -> str:
    """Return thoughts that never end."""
    return CASES[name][1].partition("Hm.")[0].partition("I could")[0] + "Hm, x"


@pytest.mark.parametrize("tools", [(), TOOLS])
@pytest.mark.parametrize("budget", [0, 9, 40])
@pytest.mark.parametrize("name", THINKING)
def test_thoughts_end_when_their_budget_is_spent(name: str, budget: int, tools: Any) -> None:
    model = Model(name)
    ends = model.syntax.thought_ends
    assert ends
    closing = len(model.table.encode(ends[1]))
    events = answer(model, endless(name), tools=tools, max_tokens=120, thinking_budget=budget)
    (finished,) = (event for event in events if isinstance(event, ChatFinished))
    assert finished.usage.reasoning_tokens <= max(budget, closing + 2)  # a token tells that a thought began, or ended
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert thought.count("x") <= budget
    assert len(thought.strip()) <= max(budget, 1)
    if name != "harmony":  # whose answer has a header
        assert finished.usage.completion_tokens == 120
        assert "xxx" in said(events)[0]


def test_a_budget_that_is_not_spent_changes_nothing() -> None:
    model = Model("hermes")
    script = [*model.tokens("<think>\nHm.\n</think>\n\nIt rains."), model.table.eos_id]
    events = answer(model, script, max_tokens=200, thinking_budget=40)
    assert (said(events)[0], said(events)[2]) == ("It rains.", "stop")
    assert [event for event in events if isinstance(event, ReasoningDelta)]


def test_a_required_call_and_a_value_come_behind_a_thought_that_was_closed() -> None:
    for name in ("hermes", "glm", "deepseek"):
        options = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 150, "thinking_budget": 12}
        events = answer(Model(name), endless(name), **options)
        assert any(isinstance(event, ToolCallDelta) for event in events)
        events = answer(Model(name), endless(name), format=JsonFormat(TEXT), max_tokens=150, thinking_budget=12)
        assert said(events)[0].startswith('{"city": "')


def test_a_thought_that_begins_once_more_is_closed_at_once() -> None:
    budget = ThinkingBudget.of(5, (), (7,), (8, 9))
    took = []
    for thinking in (True, True, True, True, True, False, True, True, False):  # the end is seen a token late
        due = budget.due(thinking=thinking)
        took.append(due)
        budget.took(due if due is not None else 1, thinking=thinking)
    assert took == [None, None, None, 7, None, None, 8, 9, None]


def test_the_words_of_a_family_are_a_part_of_the_budget_and_come_where_there_is_room() -> None:
    model = Model("hermes")
    words = model.table.encode(LAST_WORDS["qwen3"])
    mark = model.table.encode("</think>")
    assert not ThinkingBudget.of(10, words, mark).words
    assert list(ThinkingBudget.of(4 * len(words), words, mark).words) == words
    assert Thoughts("<think>", "</think>").last_words == ""


@pytest.mark.parametrize(
    ("options", "effort", "tokens"),
    [
        ({}, None, None),
        ({"reasoning_effort": "none", "enable_thinking": False}, None, 0),
        ({"enable_thinking": False}, EffortTraits(), 0),
        ({"reasoning_effort": "low", "enable_thinking": True}, None, 1024),
        ({"reasoning_effort": "low", "enable_thinking": True}, EffortTraits(), None),
        ({"reasoning_effort": "high", "enable_thinking": True}, None, None),
        ({"reasoning_effort": ["odd"]}, None, None),
    ],
)
def test_an_effort_is_a_budget_where_no_template_tells_it(
    options: dict[str, Any], effort: EffortTraits | None, tokens: int | None
) -> None:
    traits = TemplateTraits(effort=effort)
    assert thinking_budget(options, traits) == tokens
    if effort is None and tokens is not None:
        assert unused_options(options, traits, held=True) == ()
        assert set(unused_options(options, traits)) == set(options)


@pytest.mark.parametrize("length", range(12, 18))
def test_the_text_of_an_answer_has_no_mark_of_a_thought_that_was_closed(length: int) -> None:
    """Neither where the engine closes the thought, nor where the model does when its budget is just spent."""
    for script in ("<think>x", f"<think>{'x' * length}</think>x"):
        events = answer(Model("hermes"), script, max_tokens=60, thinking_budget=20)
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert set(text) == {"x"}
