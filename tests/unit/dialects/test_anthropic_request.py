"""A body of Messages as a chat completion's."""

import json
from typing import Any

import pytest

from server.dialects.anthropic.request import to_chat, without_unsupported
from server.dialects.anthropic.schema import MessagesBody
from server.errors import BadRequest
from server.flows.chat.parse import parse_chat
from server.schemas.validation import validate

TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}

SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def converted(values: dict[str, Any]) -> dict[str, Any]:
    return to_chat(validate(MessagesBody, without_unsupported(values)[0], strict=True))


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return converted({"model": "m", "max_tokens": 8, "messages": list(messages), **fields})


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def test_instructions_come_first_and_texts_stay_texts() -> None:
    values = chat(
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        user({"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}}),
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
        temperature=0.5,
        top_k=3,
        metadata={"user_id": "u"},
    )
    assert values["messages"] == [
        {"role": "system", "content": "be\nkind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert (values["temperature"], values["top_k"], values["user"], values["max_tokens"]) == (0.5, 3, "u", 8)
    assert "tools" not in values


def test_a_round_of_tools_is_ours() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"where": "Wien"}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a star"}, image]}
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True}
    values = chat(
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}, call]},
        user(result, failed, {"type": "text", "text": "and?"}),
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    _, said, star, gone, last = values["messages"]
    assert said["content"] == "yes"
    (made,) = said["tool_calls"]
    assert (made["id"], json.loads(made["function"]["arguments"])) == ("t1", {"where": "Wien"})
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert star == {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "a star"}, shown]}
    assert (gone["content"], last["content"]) == ("error: gone", "and?")
    assert (values["tool_choice"], values["parallel_tool_calls"]) == ("required", False)
    assert parse_chat(values).tools[0]["function"]["name"] == "look"


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_a_tool_choice_is_ours(choice: Any, ours: Any) -> None:
    assert chat({"role": "user", "content": "x"}, tools=[TOOL], tool_choice=choice)["tool_choice"] == ours


def test_the_form_of_the_answer_is_a_response_format() -> None:
    schema = {"type": "object", "properties": {}}
    values = chat({"role": "user", "content": "x"}, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert values["response_format"]["json_schema"]["schema"] == schema


def test_a_document_is_its_text() -> None:
    document = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "words"},
    }
    (message,) = chat(user(document))["messages"]
    assert message["content"] == "T\nwords"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tools[0].type"),
        ({"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tools[1].type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_its_name(fields: Any, param: str) -> None:
    values = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(BadRequest) as raised:
        converted(values)
    assert raised.value.param == param


THOUGHTS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "old"}, {"type": "text", "text": "1"}]},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "new"}, {"type": "text", "text": "2"}]},
    {"role": "user", "content": "three"},
]


@pytest.mark.parametrize(
    ("edits", "kept", "named"),
    [
        (None, ["old", "new"], []),
        ([{"type": "clear_thinking_20251015", "keep": "all"}], ["old", "new"], []),
        ([{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}], [None, "new"], []),
        ([{"type": "clear_thinking_20251015"}], [None, "new"], []),
        ([{"type": "clear_thinking_20251015", "keep": 7}], ["old", "new"], []),
        ([{"type": "clear_tool_uses_20250919"}], ["old", "new"], ["context_management.edits[0]"]),
    ],
)
def test_thoughts_of_older_answers_are_cleared_as_asked(edits: Any, kept: list[Any], named: list[str]) -> None:
    fields = {"context_management": {"edits": edits}} if edits else {}
    values = {"model": "m", "max_tokens": 9, "messages": THOUGHTS, **fields}
    known, unread = without_unsupported(values)
    messages = to_chat(validate(MessagesBody, known, strict=True))["messages"]
    thoughts = [message.get("reasoning_content") for message in messages if message["role"] == "assistant"]
    assert (thoughts, unread) == (kept, named)
