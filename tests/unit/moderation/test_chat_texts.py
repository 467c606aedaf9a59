"""Which texts of a chat are moderated: all that reach its model."""

from typing import Any, cast

import pytest

from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from server.accounts.db import Database
from server.backends.engine_host import EngineHost, HostLimits
from server.errors import BadRequest
from server.flows.chat.moderation import chat_texts, upstream_texts
from server.flows.chat.parse import parse_chat
from server.flows.chat.run import ChatRunner
from server.schemas.chat_messages import MAX_TEXT
from server.state.tasks import BackgroundTasks
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool_call(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "cut", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "with a knife",
        "parameters": {"type": "object", "properties": {"knives": {"enum": ["dagger"]}}},
    },
}


def test_plain_messages_are_their_contents() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert chat_texts([user("one"), user([{"type": "text", "text": "two"}, image])]) == ["one", "two"]


def test_parts_are_moderated_one_by_one_and_concatenated() -> None:
    parts = [{"type": "text", "text": "a kn"}, {"type": "refusal", "refusal": "ife"}]
    assert chat_texts([user(parts)]) == ["a kn", "ife", "a knife"]


@pytest.mark.parametrize("arguments", ['{"what": "knife"}', r'{"what": "k\u006eife"}', "knife}", '{"knife": 1}'])
def test_tool_calls_are_moderated_with_parsed_arguments(arguments: str) -> None:
    (text,) = chat_texts([tool_call(arguments)])
    assert text.startswith("name\ncut\n")
    assert "knife" in text


def test_calls_of_custom_tools_are_moderated() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "note", "input": "secret"}}
    assert chat_texts([{"role": "assistant", "content": None, "tool_calls": [call]}]) == ["name\nnote\ninput\nsecret"]


def test_refusals_reasoning_and_tool_results_are_moderated() -> None:
    refused = {"role": "assistant", "refusal": "no knife", "reasoning_content": "hmm"}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    assert chat_texts([refused, result]) == ["done", "no knife", "hmm"]


def test_a_tool_is_one_text_with_the_names_of_its_parameters() -> None:
    (text,) = chat_texts([], parse_chat({"messages": [user("x")], "tools": [WEATHER]}).tools)
    assert {"weather", "with a knife", "knives", "dagger"} <= set(text.split("\n"))


def test_deeply_nested_values_are_moderated() -> None:
    deep: Any = "knife"
    for _ in range(5000):
        deep = [deep]
    assert chat_texts([], [deep]) == ["knife"]


@pytest.mark.parametrize(
    "field", [{"documents": [{"title": "a knife"}]}, {"chat_template": "a knife"}, {"functions": [WEATHER]}]
)
async def test_fields_of_an_upstreams_template_are_moderated(field: dict[str, Any]) -> None:
    assert await upstream_texts({"messages": [user("hello")]}) == ["hello"]
    assert any("knife" in text for text in await upstream_texts({"messages": [user("hello")], **field}))


async def test_more_text_than_any_context_holds_is_refused_before_it_is_tokenized(database: Database) -> None:
    half = user("x" * (MAX_TEXT // 2 + 1))
    with pytest.raises(BadRequest, match="Expected at most 10485760") as raised:
        chat_texts([half, half])
    assert raised.value.code == "string_above_max_length"
    engine = EngineHost[ChatJob | CountJob, ChatEvent]("chat", (), HostLimits(1))
    runner = ChatRunner(engine, Metrics(), Tracing(), database, BackgroundTasks())
    with pytest.raises(BadRequest):
        await runner.count_tokens(CountJob("count_1", cast(Any, None), (half, half)))
    assert engine.jobs == 0
