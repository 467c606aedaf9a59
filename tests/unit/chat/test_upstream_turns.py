"""Turns that another server's template refused, and what is sent in their place."""

from typing import Any

import pytest

from server.backends.upstream import UpstreamResponse
from server.backends.upstream_errors import read_error
from server.flows.chat.upstream_turns import with_plain_turns

REFUSALS = [  # of templates and servers
    (400, "System message must be at the beginning."),
    (400, "Unexpected message role."),
    (500, 'unexpected message role "developer"'),
    (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
    (422, "messages[0].role: unknown variant `developer`, expected one of `system`, `user`, `assistant`, `tool`"),
    (400, "'developer' is not one of ['system', 'assistant', 'user', 'tool', 'function'] - 'messages.0.role'"),
]
TOLD = [
    {"role": "system", "content": "a"},
    {"role": "developer", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "developer", "content": "e"},
    {"role": "user", "content": [{"type": "text", "text": "f"}]},
]
PLAIN = [
    {"role": "system", "content": "a\n\nb"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": [{"type": "text", "text": "e"}, {"type": "text", "text": "f"}]},
]


def refused(status: int, message: str) -> UpstreamResponse:
    error = read_error({"error": {"message": message}}, status)
    return UpstreamResponse(status, error.body(), {}, error)


@pytest.mark.parametrize(("status", "message"), REFUSALS)
def test_instructions_are_told_in_one_place(status: int, message: str) -> None:
    changed = with_plain_turns({"messages": TOLD, "stream": True}, refused(status, message))
    assert changed == {"messages": PLAIN, "stream": True}


@pytest.mark.parametrize("messages", [PLAIN, [], None, "hi", ["hi"]])
def test_what_would_not_change_is_not_asked_for_again(messages: Any) -> None:
    assert with_plain_turns({"messages": messages}, refused(*REFUSALS[0])) is None


@pytest.mark.parametrize(
    "answer",
    [refused(400, "no such tool"), refused(429, "Your role has too many requests"), UpstreamResponse(200, {}, {})],
)
def test_an_answer_that_is_not_about_roles_stays(answer: UpstreamResponse) -> None:
    assert with_plain_turns({"messages": TOLD}, answer) is None
