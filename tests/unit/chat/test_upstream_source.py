"""A chat model on another server: how it is asked for a turn, and how its stream is read, whatever its dialect."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

import pytest

from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatSampling,
    ChatUsage,
    ChoiceFinished,
    JsonFormat,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from pipelines.protocol.upstream import Upstream
from server.backends.upstream import UpstreamResponse
from server.backends.upstream_errors import read_error
from server.catalog.chat import ChatModel
from server.errors import BadRequest, ContextExceeded, EngineFailure, UpstreamRefused
from server.flows.chat.events import RawItem
from server.flows.chat.request import ChatRequest, to_body
from server.flows.chat.upstream_source import UpstreamSource, within_context
from server.schemas.extra_fields import SAMPLED

UPSTREAM = Upstream("http://there/v1", "large", None)
MODEL = ChatModel("large", "chat", UPSTREAM)
TURN = ChatRequest(messages=({"role": "user", "content": "hi"},), sampling=ChatSampling(unset=SAMPLED))
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


class Scripted(UpstreamSource):
    """An upstream whose stream is these items."""

    def __init__(self, *items: Any) -> None:
        super().__init__(cast(Any, None), MODEL, UPSTREAM)
        self._items = items

    async def stream(self, values: Any, usage: Any) -> AsyncGenerator[Any, None]:
        for item in self._items:
            yield item if isinstance(item, UpstreamResponse) else RawItem(item)


async def events_of(*items: Any) -> list[ChatEvent]:
    return [event async for event in Scripted(*items).run(TURN, cast(Any, None))]


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": None}], "usage": None}


async def test_every_kind_of_delta_is_read() -> None:
    begin = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": ""}}
    more = {"index": 0, "id": None, "function": {"name": None, "arguments": "{}"}}
    events = await events_of(
        delta(role="assistant", content=""),
        delta(reasoning="so "),
        delta(reasoning_content="what"),
        delta(content="hello", tool_calls=None),
        delta(tool_calls=[begin]),
        delta(tool_calls=[more]),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": USAGE},
    )
    assert events[:-1] == [
        Admitted(0),
        ReasoningDelta(0, "so "),
        ReasoningDelta(0, "what"),
        TextDelta(0, "hello"),
        ToolCallDelta(0, 0, "", "call_1", "look"),
        ToolCallDelta(0, 0, "{}"),
        ChoiceFinished(0, "tool_calls"),
    ]
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage == ChatUsage(3, 2, 1)


ROOM = "This model's maximum context length is 20000 tokens. However, your prompt contains {}, and you asked for 4000."


def refused(status: int, message: str) -> UpstreamResponse:
    error = read_error({"error": {"message": message}}, status)
    return UpstreamResponse(error.status, error.body(), {}, error)


@pytest.mark.parametrize(
    ("item", "error", "says"),
    [
        (refused(400, "a value"), BadRequest, "a value"),
        (
            refused(400, "prompt is too long: 3 tokens > 2 maximum"),
            ContextExceeded,
            "maximum context length is 2 tokens",
        ),
        (refused(429, "slow down"), UpstreamRefused, "slow down"),
        (UpstreamResponse(200, {"choices": []}, {}), EngineFailure, "sent no stream"),
        (refused(502, "bad gateway"), UpstreamRefused, "bad gateway"),
        ({"choices": "none"}, EngineFailure, "can't be read"),
    ],
)
async def test_what_is_no_stream_of_chunks_is_an_error(item: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        await events_of(item)


def test_a_turn_is_asked_for_with_nothing_that_says_nothing() -> None:
    assert to_body(TURN) == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_the_caller_chose_is_sent_even_if_it_is_the_default_here() -> None:
    body = to_body(replace(TURN, sampling=ChatSampling(unset=SAMPLED - {"temperature", "frequency_penalty"})))
    assert (body["temperature"], body["frequency_penalty"]) == (1.0, 0.0)
    assert "top_p" not in body


def test_only_tools_that_may_be_called_are_sent() -> None:
    asked = replace(TURN, tools=(tool("look"), tool("draw")), parallel_tool_calls=False, tool_choice="required")
    body = to_body(replace(asked, allowed_tools=("draw",), max_tokens=16))
    assert (body["tools"], body["tool_choice"], body["parallel_tool_calls"]) == ([tool("draw")], "required", False)
    assert body["max_tokens"] == 16


@pytest.mark.parametrize(("closed", "strict"), [({"additionalProperties": False}, True), ({}, False)])
def test_a_schema_is_strict_where_it_can_be(closed: dict[str, Any], strict: bool) -> None:
    schema = {"type": "object", "properties": {}, **closed}
    body = to_body(replace(TURN, format=JsonFormat(schema)))
    assert body["response_format"]["json_schema"] == {"name": "answer", "schema": schema, "strict": strict}


@pytest.mark.parametrize(
    ("status", "message", "values", "lowered"),
    [
        (400, ROOM.format("19000 input tokens"), {"max_tokens": 4000}, {"max_tokens": 1000}),
        (400, ROOM.format("19000 input tokens"), {"max_completion_tokens": 4000}, {"max_completion_tokens": 1000}),
        (400, ROOM.format("at least 16001 input tokens"), {"max_tokens": 4000, "n": 1}, {"n": 1}),  # not counted
        (400, "context length exceeded", {"max_tokens": 4000}, {}),
        (400, ROOM.format("20001 input tokens"), {"max_tokens": 4000}, None),
        (400, ROOM.format("19000 input tokens"), {}, None),
        (400, "temperature is too high", {"max_tokens": 4000}, None),
        (429, "slow down", {"max_tokens": 4000}, None),
    ],
)
def test_the_limit_of_an_answer_is_lowered_to_what_fits(
    status: int, message: str, values: dict[str, Any], lowered: dict[str, Any] | None
) -> None:
    assert within_context(values, refused(status, message)) == lowered
