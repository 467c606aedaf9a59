"""An engine's events become OpenAI's objects, validated by the types of OpenAI's SDK."""

from collections.abc import AsyncIterator
from typing import Any

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pipelines.protocol.chat import (
    ChatEvent,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)
from server.flows.chat.completion import CompletionHead, CompletionWriter

HEAD = CompletionHead("chatcmpl-1", 1_760_000_000, "small", "fp_1")
END = (ChoiceFinished(0, "stop"), ChatFinished(ChatUsage(3, 2), 0.1))
TEXT = (TextDelta(0, "Grüß "), TextDelta(0, "Gott"), *END)
TOOL_CALLS = (
    ToolCallDelta(0, 0, "", "call_1", "weather"),
    ToolCallDelta(0, 0, '{"city": '),
    ToolCallDelta(0, 0, '"Wien"}'),
    ToolCallDelta(0, 1, "{}", "call_2", "now"),
    ChoiceFinished(0, "tool_calls"),
    ChatFinished(ChatUsage(30, 20, 4), 0.1),
)


async def replay(*events: ChatEvent) -> AsyncIterator[ChatEvent]:
    for event in events:
        yield event


async def stream(*events: ChatEvent, logprobs: bool = False, include_usage: bool = False) -> list[dict[str, Any]]:
    writer = CompletionWriter(HEAD, logprobs=logprobs, include_usage=include_usage)
    items = [item async for item in writer.chunks(replay(*events))]
    for item in items:
        ChatCompletionChunk.model_validate(item, strict=True)
    return items


async def completion_of(*events: ChatEvent, n: int = 1, logprobs: bool = False) -> dict[str, Any]:
    answer = await CompletionWriter(HEAD, n, logprobs=logprobs).collect(replay(*events))
    ChatCompletion.model_validate(answer, strict=True)
    return answer


def deltas(items: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str | None]]:
    return [(item["choices"][0]["delta"], item["choices"][0]["finish_reason"]) for item in items if item["choices"]]


async def test_a_stream_is_the_role_then_text_then_the_finish_reason() -> None:
    items = await stream(*TEXT)
    assert deltas(items) == [
        ({"role": "assistant", "content": "", "refusal": None}, None),
        ({"content": "Grüß "}, None),
        ({"content": "Gott"}, None),
        ({}, "stop"),
    ]
    assert all("usage" not in item and item["choices"] for item in items)
    assert {(item["id"], item["created"], item["object"]) for item in items} == {
        ("chatcmpl-1", 1_760_000_000, "chat.completion.chunk")
    }


async def test_the_usage_comes_last_and_alone_and_is_null_before() -> None:
    *before, last = await stream(*TEXT, include_usage=True)
    assert all(item["usage"] is None for item in before)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["total_tokens"]) == (3, 5)


async def test_tool_calls_begin_with_id_and_name_and_continue_with_arguments() -> None:
    items = await stream(*TOOL_CALLS)
    assert [delta for delta, _ in deltas(items)] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"tool_calls": [_tool_call(0, "", "call_1", "weather")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Wien"}'}}]},
        {"tool_calls": [_tool_call(1, "{}", "call_2", "now")]},
        {},
    ]
    assert deltas(items)[-1][1] == "tool_calls"
    message = (await completion_of(*TOOL_CALLS))["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Wien"}'},
        {"name": "now", "arguments": "{}"},
    ]


async def test_a_custom_tools_call_is_a_text_from_its_first_piece() -> None:
    events = (
        ToolCallDelta(0, 0, "", "call_1", "note"),
        ToolCallDelta(0, 0, '{"inp'),
        ToolCallDelta(0, 0, 'ut": "a\\'),
        ToolCallDelta(0, 0, 'nb"}'),
        ToolCallDelta(0, 1, "{}", "call_2", "now"),
        ToolCallDelta(0, 2, "[1]", "call_3", "note"),  # of a model that was told no schema
        *TOOL_CALLS[-2:],
    )
    writer = CompletionWriter(HEAD, custom_tools={"note"})
    items = [item async for item in writer.chunks(replay(*events))]
    assert [delta for delta, _ in deltas(items)] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "note", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "a"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "\nb"}}]},
        {"tool_calls": [_tool_call(1, "{}", "call_2", "now")]},
        {"tool_calls": [{"index": 2, "id": "call_3", "type": "custom", "custom": {"name": "note", "input": ""}}]},
        {"tool_calls": [{"index": 2, "custom": {"input": "[1]"}}]},
        {},
    ]
    answer = await writer.collect(replay(*events))
    first, second, third = ChatCompletion.model_validate(answer, strict=True).choices[0].message.tool_calls or ()
    assert (first.type, first.id) == ("custom", "call_1")
    assert first.type == "custom"
    assert first.custom.model_dump() == {"name": "note", "input": "a\nb"}
    assert second.type == "function"
    assert third.type == "custom"
    assert third.custom.input == "[1]"


def _tool_call(index: int, arguments: str, call_id: str, name: str) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_the_sdk_accumulates_a_stream_to_the_whole_completion() -> None:
    for events in (TEXT, TOOL_CALLS):
        state = ChatCompletionStreamState()
        for item in await stream(*events, include_usage=True):
            state.handle_chunk(ChatCompletionChunk.model_validate(item))
        streamed = state.get_final_completion().model_dump(exclude={"choices": {"__all__": {"message": {"parsed"}}}})
        answer = ChatCompletion.model_validate(await completion_of(*events)).model_dump()
        assert streamed["usage"] == answer["usage"]
        for key in ("role", "content", "refusal"):
            assert streamed["choices"][0]["message"][key] == answer["choices"][0]["message"][key]
        assert streamed["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]


async def test_each_choice_has_its_own_role_and_finish_reason() -> None:
    events = (TextDelta(1, "b"), TextDelta(0, "a"), ChoiceFinished(1, "length"), *END)
    items = await stream(*events)
    assert [item["choices"][0]["index"] for item in items] == [1, 1, 0, 0, 1, 0]
    answer = await completion_of(*events, n=2)
    assert [(c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        ("a", "stop"),
        ("b", "length"),
    ]


async def test_an_empty_choice_has_a_role_and_a_finish_reason() -> None:
    assert [reason for _, reason in deltas(await stream(*END))] == [None, "stop"]
    assert (await completion_of(*END))["choices"][0]["message"]["content"] == ""


async def test_logprobs_only_when_requested() -> None:
    top = (TopToken("H", b"H", -0.1), TopToken("h", b"h", -2.5))
    events = (TextDelta(0, "Hi", (TokenLogprob("H", b"H", -0.1, top), TokenLogprob("i", b"i", -0.5))), *END)
    assert all(item["choices"][0]["logprobs"] is None for item in await stream(*events))
    streamed = (await stream(*events, logprobs=True))[1]["choices"][0]["logprobs"]
    answer = (await completion_of(*events, logprobs=True))["choices"][0]["logprobs"]
    assert streamed == answer
    assert [(token["token"], token["bytes"]) for token in streamed["content"]] == [("H", [72]), ("i", [105])]
    assert streamed["content"][0]["top_logprobs"][1] == {"token": "h", "logprob": -2.5, "bytes": [104]}


async def test_reasoning_is_separate_from_content() -> None:
    events = (ReasoningDelta(0, "hm"), TextDelta(0, "yes"), ChoiceFinished(0, "stop"), END[1])
    assert [delta for delta, _ in deltas(await stream(*events))][1:3] == [
        {"reasoning_content": "hm"},
        {"content": "yes"},
    ]
    assert (await completion_of(*events))["choices"][0]["message"]["reasoning_content"] == "hm"
