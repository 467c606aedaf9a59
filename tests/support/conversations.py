"""Conversations of many clients, in which every word to look for in a prompt is marked: say1, say2, ..."""

import json
from typing import Any

Message = dict[str, Any]
ID, OTHER_ID = "call_0f9e8d7c6b5a49382716f0e1", "toolu_01A09q90qw90lq917835lq9"


def said(role: str, content: str | None, **others: Any) -> Message:
    return {"role": role, "content": content, **others}


def call(call_id: str, **arguments: str) -> Message:
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def cut_call(call_id: str, city: str) -> Message:
    """A call whose arguments ran out of tokens, and are no JSON."""
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": f'{{"city": "{city}'}}


def result(call_id: str, content: str) -> Message:
    return said("tool", content, tool_call_id=call_id)


CONVERSATIONS = {
    "the server's own call, sent back": [
        said("user", "say1"), said("assistant", None, tool_calls=[call(ID, city="say2")]), result(ID, "say3"),
    ],
    "a turn behind a call": [
        said("system", "say1"), said("user", "say2"), said("assistant", None, tool_calls=[call(ID, city="say3")]),
        result(ID, "say4"), said("assistant", "say5"), said("user", "say6"),
    ],
    "two calls": [
        said("user", "say1"), said("assistant", None, tool_calls=[call(ID, city="say2"), call(OTHER_ID, city="say3")]),
        result(ID, "say4"), result(OTHER_ID, "say5"), said("assistant", "say6"), said("user", "say7"),
    ],
    "a chain of images": [
        said("user", "say1"), said("assistant", None, tool_calls=[call("ig_1", city="say2")]), result("ig_1", "say3"),
        said("user", "say4"),
    ],
    "Codex": [said("system", "say1"), said("developer", "say2"), said("developer", "say3"), said("user", "say4")],
    "Claude Code": [
        said("system", "say1"), said("system", "say2"), said("user", "say3"),
        said("assistant", None, tool_calls=[call(ID, city="say4")]), result(ID, "say5"), said("system", "say6"),
    ],
    "a later reminder": [
        said("system", "say1"), said("user", "say2"), said("assistant", "say3"), said("system", "say4"),
        said("user", "say5"),
    ],
    "opencode's title": [said("system", "say1"), said("user", "say2"), said("user", "say3")],
    "a greeting first": [said("assistant", "say1"), said("user", "say2")],
    "two answers": [said("user", "say1"), said("assistant", "say2"), said("assistant", "say3"), said("user", "say4")],
    "instructions alone": [said("developer", "say1")],
    "a call that was cut off": [
        said("user", "say1"), said("assistant", None, tool_calls=[cut_call(ID, "say2")]), result(ID, "say3"),
        said("user", "say4"),
    ],
    "a result whose call was left out": [result(ID, "say1"), said("user", "say2")],
    "a call without a result": [
        said("user", "say1"), said("assistant", None, tool_calls=[call(ID, city="say2")]), said("user", "say3"),
    ],
    "a word between a call and its result": [
        said("system", "say1"), said("user", "say2"), said("assistant", None, tool_calls=[call(ID, city="say3")]),
        said("system", "say4"), result(ID, "say5"), said("user", "say6"),
    ],
    "an answer that was cut off": [said("user", "say1"), said("assistant", ""), said("user", "say2")],
}  # fmt: skip
