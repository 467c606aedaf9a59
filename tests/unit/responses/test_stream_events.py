"""From a model's deltas to events and items."""

from typing import Any

from pipelines.protocol.chat import ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta
from server.accounts.responses import StoredResponse
from server.flows.responses.stream_events import Scribe
from server.state.active_responses import LiveResponse
from tests.support.response_shapes import check_event


def live_response() -> LiveResponse:
    record = StoredResponse("resp_1", "key_1", None, "in_progress", False, {}, 1_760_000_000)
    return LiveResponse(record, recorded=False)


def scribe(live: LiveResponse, may_draw: int = 10, **options: Any) -> Scribe:
    return Scribe(live, **{"hosted": True, "may_draw": may_draw, "logprobs": False, **options})


def kinds(live: LiveResponse) -> list[str]:
    return [event["type"].removeprefix("response.") for event in live.events]


async def test_a_text_is_a_message_whose_deltas_add_up() -> None:
    live = live_response()
    writer = scribe(live)
    for text in ("He", "llo"):
        writer.write(TextDelta(0, text))
    writer.close("stop")
    assert kinds(live) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    for event in live.events:
        check_event(event)
    (item,) = live.output
    assert item["content"][0]["text"] == "Hello"
    assert item["status"] == "completed"
    assert writer.done == [(0, item)]


async def test_a_text_that_was_cut_is_incomplete() -> None:
    live = live_response()
    writer = scribe(live)
    writer.write(TextDelta(0, "He"))
    writer.close("length")
    assert live.output[0]["status"] == "incomplete"


async def test_log_probabilities_are_told_only_when_asked() -> None:
    token = TokenLogprob("He", b"He", -0.5)
    for asked, told in ((True, 1), (False, 0)):
        live = live_response()
        writer = scribe(live, logprobs=asked)
        writer.write(TextDelta(0, "He", (token,)))
        writer.close("stop")
        assert len(live.output[0]["content"][0]["logprobs"]) == told


async def test_a_function_call_streams_its_arguments() -> None:
    live = live_response()
    writer = scribe(live)
    writer.write(TextDelta(0, "Let me look."))
    writer.write(ToolCallDelta(0, 0, "", call_id="call_1", name="look"))
    writer.write(ToolCallDelta(0, 0, '{"a"'))
    writer.write(ToolCallDelta(0, 0, ": 1}"))
    writer.close("tool_calls")
    assert kinds(live)[-5:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert live.output[1]["arguments"] == '{"a": 1}'
    assert live.output[1]["call_id"] == "call_1"
    assert [call.name for call in writer.functions] == ["look"]


async def test_an_image_call_is_begun_and_left_open() -> None:
    live = live_response()
    writer = scribe(live)
    writer.write(ToolCallDelta(0, 0, '{"prompt": "a boat"}', call_id="call_1", name="image_generation"))
    writer.close("tool_calls")
    assert kinds(live) == ["output_item.added", "image_generation_call.in_progress"]
    (call,) = writer.drawings
    assert call.arguments == '{"prompt": "a boat"}'
    assert live.output[0]["result"] is None
    assert writer.done == []


async def test_pictures_beyond_the_most_are_passed_over() -> None:
    live = live_response()
    writer = scribe(live, may_draw=1)
    for index in range(3):
        writer.write(ToolCallDelta(0, index, "{}", call_id=f"call_{index}", name="image_generation"))
        writer.write(ToolCallDelta(0, index, " "))
    writer.close("tool_calls")
    assert len(writer.drawings) == 1
    assert len(live.output) == 1


async def test_without_the_hosted_tool_its_name_is_a_function_like_any_other() -> None:
    live = live_response()
    writer = scribe(live, hosted=False)
    writer.write(ToolCallDelta(0, 0, "{}", call_id="call_1", name="image_generation"))
    writer.close("tool_calls")
    assert writer.drawings == []
    assert live.output[0]["type"] == "function_call"


async def test_what_was_thought_is_an_item_of_its_own() -> None:
    live = live_response()
    writer = scribe(live)
    writer.write(ReasoningDelta(0, "hm"))
    writer.write(TextDelta(0, "Yes."))
    writer.close("stop")
    assert [item["type"] for item in live.output] == ["reasoning", "message"]
    assert live.output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


async def test_listeners_get_every_event_whenever_they_come() -> None:
    live = live_response()
    live.tell_state("response.created")
    live.status = "in_progress"
    live.end("completed", {"completed_at": 1})
    assert [event["sequence_number"] async for event in live.follow()] == [0, 1]
    assert [event["sequence_number"] async for event in live.follow(0)] == [1]
    assert live.object()["completed_at"] == 1
