"""A chat's events as a message, and as the events of a stream of Messages."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter

from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.dialects.anthropic.answers import EVENTS, SIGNATURE, MessageAnswer, MessageWriter, collect
from server.http.chat_delivery import write_each

USAGE = ChatFinished(ChatUsage(7, 5), 0.1)
EVENT: TypeAdapter[Any] = TypeAdapter(EVENTS[0] | EVENTS[1] | EVENTS[2] | EVENTS[3] | EVENTS[4] | EVENTS[5])


async def written(*events: ChatEvent) -> list[dict[str, Any]]:
    async def chat() -> AsyncIterator[ChatEvent]:
        for event in (Admitted(7), *events, USAGE):
            yield event

    found = [event async for event in write_each(MessageWriter("msg_1", "small").write, chat())]
    for event in found:
        EVENT.validate_python(event)
    return found


async def folded(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    async def stream() -> AsyncIterator[dict[str, Any]]:
        for event in events:
            yield event

    message = await collect(stream())
    TypeAdapter(MessageAnswer).validate_python(message)
    return message


async def test_a_text_is_one_block() -> None:
    events = await written(TextDelta(0, "Hel"), TextDelta(0, "lo"), ChoiceFinished(0, "stop"))
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 7
    message = await folded(events)
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (7, 5)


async def test_thoughts_text_and_parallel_calls_are_blocks_of_their_own() -> None:
    events = await written(
        ReasoningDelta(0, "hm"),
        TextDelta(0, "I look"),
        ToolCallDelta(0, 0, "", "call_1", "look"),
        ToolCallDelta(0, 0, '{"a": '),
        ToolCallDelta(0, 0, "1}"),
        ToolCallDelta(0, 1, "", "call_2", "look"),
        ToolCallDelta(0, 1, "{}"),
        ChoiceFinished(0, "tool_calls"),
    )
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    message = await folded(events)
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_2", "name": "look", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"


async def test_an_end_says_why() -> None:
    cut = await folded(await written(TextDelta(0, "a"), ChoiceFinished(0, "length")))
    stopped = await folded(await written(TextDelta(0, "a"), ChoiceFinished(0, "stop", "END")))
    empty = await folded(await written(ChoiceFinished(0, "stop")))
    assert cut["stop_reason"] == "max_tokens"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")
    assert empty["content"] == []


@pytest.mark.parametrize("arguments", ['{"a', '{"a": 1e999}', '{"a": NaN}', "[]"])
async def test_arguments_that_are_no_object_are_shown(arguments: str) -> None:
    events = await written(ToolCallDelta(0, 0, arguments, "call_1", "look"), ChoiceFinished(0, "length"))
    (call,) = (await folded(events))["content"]
    assert call["input"] == {"INVALID_JSON": arguments}
