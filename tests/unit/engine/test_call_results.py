"""Calls and their results, paired in whatever history a client sends."""

from collections.abc import Sequence

import pytest

from pipelines.chat.prompts.call_forms import NO_RESULT, pair_results
from tests.support.conversations import Message, call, result, said


def _calls(*ids: str) -> Message:
    return said("assistant", "", tool_calls=[call(one) for one in ids])


def _short(messages: Sequence[Message]) -> list[str]:
    """Each message as its role, and what it says or the ids of its calls."""
    calls = [[each["id"] for each in message.get("tool_calls", ())] for message in messages]
    return [
        f"{one['role']} {'+'.join(ids) or one['content']}{'@' + one['tool_call_id'] if 'tool_call_id' in one else ''}"
        for one, ids in zip(messages, calls, strict=True)
    ]


@pytest.mark.parametrize(
    ("messages", "paired"),
    [
        ([_calls("a", "b"), result("b", "1"), result("a", "2")], ["assistant a+b", "tool 2@a", "tool 1@b"]),
        ([_calls("a", "b"), result("b", "1")], ["assistant a+b", "tool 1@b"]),
        (
            [_calls("a", "b"), result("b", "1"), said("user", "2")],
            ["assistant a+b", f"tool {NO_RESULT}@a", "tool 1@b", "user 2"],
        ),
        (
            [_calls("a"), _calls("b"), result("a", "1"), result("b", "2")],
            ["assistant a", "tool 1@a", "assistant b", "tool 2@b"],
        ),
        ([_calls("a"), said("system", "1"), result("a", "2")], ["assistant a", "tool 2@a", "system 1"]),
        (
            [_calls("a"), result("a", "1"), _calls("a"), result("a", "2")],
            ["assistant a", "tool 1@a", "assistant a", "tool 2@a"],
        ),
        ([_calls("a", "a"), result("a", "1"), result("a", "2")], ["assistant a+a", "tool 1@a", "tool 2@a"]),
        ([_calls("a"), result("a", "1"), result("a", "2")], ["assistant a", "tool 1@a", "tool 2@a"]),
        ([_calls("a"), result("x", "1")], ["assistant a", "tool 1@a"]),
        ([said("user", "1"), result("x", "2")], ["user 1", "user Result of the tool:\n2"]),
        ([_calls("a")], ["assistant a"]),
    ],
)
def test_results_stand_behind_their_calls(messages: list[Message], paired: list[str]) -> None:
    assert _short(pair_results(messages)) == paired
