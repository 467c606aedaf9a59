"""An engine's events become the shapes that OpenAI's SDKs read; their own types check them."""

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
from server.flows.chat.completion import Head, chunks, collect

HEAD = Head("chatcmpl-1", 1_760_000_000, "small", "fp_1")
END = (ChoiceFinished(0, "stop"), ChatFinished(ChatUsage(3, 2), 0.1))
TALK = (TextDelta(0, "Grüß "), TextDelta(0, "Gott"), *END)
CALLS = (
    ToolCallDelta(0, 0, "", "call_1", "weather"),
    ToolCallDelta(0, 0, '{"city": '),
    ToolCallDelta(0, 0, '"Wien"}'),
    ToolCallDelta(0, 1, "{}", "call_2", "now"),
    ChoiceFinished(0, "tool_calls"),
    ChatFinished(ChatUsage(30, 20, 4), 0.1),
)


async def play(*events: ChatEvent) -> AsyncIterator[ChatEvent]:
    for event in events:
        yield event


async def stream(*events: ChatEvent, logprobs: bool = False, include_usage: bool = False) -> list[dict[str, Any]]:
    told = [item async for item in chunks(HEAD, play(*events), logprobs=logprobs, include_usage=include_usage)]
    for item in told:
        ChatCompletionChunk.model_validate(item, strict=True)
    return told


async def whole(*events: ChatEvent, n: int = 1, logprobs: bool = False) -> dict[str, Any]:
    told = await collect(HEAD, play(*events), n, logprobs=logprobs)
    ChatCompletion.model_validate(told, strict=True)
    return told


def choices(told: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str | None]]:
    return [(item["choices"][0]["delta"], item["choices"][0]["finish_reason"]) for item in told if item["choices"]]


async def test_a_stream_is_the_role_then_text_then_the_reason() -> None:
    told = await stream(*TALK)
    assert choices(told) == [
        ({"role": "assistant", "content": "", "refusal": None}, None),
        ({"content": "Grüß "}, None),
        ({"content": "Gott"}, None),
        ({}, "stop"),
    ]
    assert all("usage" not in item and item["choices"] for item in told)
    assert {(item["id"], item["created"], item["object"]) for item in told} == {
        ("chatcmpl-1", 1_760_000_000, "chat.completion.chunk")
    }


async def test_the_usage_comes_last_and_alone_and_is_null_before() -> None:
    *before, last = await stream(*TALK, include_usage=True)
    assert all(item["usage"] is None for item in before)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["total_tokens"]) == (3, 5)


async def test_calls_begin_with_id_and_name_and_go_on_with_arguments() -> None:
    told = await stream(*CALLS)
    assert [delta for delta, _ in choices(told)] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"tool_calls": [_call(0, "", "call_1", "weather")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Wien"}'}}]},
        {"tool_calls": [_call(1, "{}", "call_2", "now")]},
        {},
    ]
    assert choices(told)[-1][1] == "tool_calls"
    message = (await whole(*CALLS))["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Wien"}'},
        {"name": "now", "arguments": "{}"},
    ]


def _call(index: int, arguments: str, call_id: str, name: str) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_the_sdk_puts_a_stream_together_to_what_the_whole_answer_is() -> None:
    for events in (TALK, CALLS):
        state = ChatCompletionStreamState()
        for item in await stream(*events, include_usage=True):
            state.handle_chunk(ChatCompletionChunk.model_validate(item))
        streamed = state.get_final_completion().model_dump(exclude={"choices": {"__all__": {"message": {"parsed"}}}})
        answer = ChatCompletion.model_validate(await whole(*events)).model_dump()
        assert streamed["usage"] == answer["usage"]
        for key in ("role", "content", "refusal"):
            assert streamed["choices"][0]["message"][key] == answer["choices"][0]["message"][key]
        assert streamed["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]


async def test_each_choice_has_its_own_role_and_reason() -> None:
    events = (TextDelta(1, "b"), TextDelta(0, "a"), ChoiceFinished(1, "length"), *END)
    told = await stream(*events)
    assert [item["choices"][0]["index"] for item in told] == [1, 1, 0, 0, 1, 0]
    answer = await whole(*events, n=2)
    assert [(c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        ("a", "stop"),
        ("b", "length"),
    ]


async def test_a_choice_that_says_nothing_still_has_a_role_and_a_reason() -> None:
    assert [reason for _, reason in choices(await stream(*END))] == [None, "stop"]
    assert (await whole(*END))["choices"][0]["message"]["content"] == ""


async def test_logprobs_only_when_asked() -> None:
    top = (TopToken("H", b"H", -0.1), TopToken("h", b"h", -2.5))
    events = (TextDelta(0, "Hi", (TokenLogprob("H", b"H", -0.1, top), TokenLogprob("i", b"i", -0.5))), *END)
    assert all(item["choices"][0]["logprobs"] is None for item in await stream(*events))
    told = (await stream(*events, logprobs=True))[1]["choices"][0]["logprobs"]
    answer = (await whole(*events, logprobs=True))["choices"][0]["logprobs"]
    assert told == answer
    assert [(token["token"], token["bytes"]) for token in told["content"]] == [("H", [72]), ("i", [105])]
    assert told["content"][0]["top_logprobs"][1] == {"token": "h", "logprob": -2.5, "bytes": [104]}


async def test_thoughts_are_kept_apart() -> None:
    events = (ReasoningDelta(0, "hm"), TextDelta(0, "yes"), ChoiceFinished(0, "stop"), END[1])
    assert [delta for delta, _ in choices(await stream(*events))][1:3] == [
        {"reasoning_content": "hm"},
        {"content": "yes"},
    ]
    assert (await whole(*events))["choices"][0]["message"]["reasoning_content"] == "hm"
