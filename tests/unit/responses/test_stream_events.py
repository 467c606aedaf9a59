"""From a model's deltas to events and items."""

from typing import Any

from pipelines.protocol.chat import ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta
from server.accounts.responses import StoredResponse
from server.flows.responses.stream_events import EventWriter
from server.flows.responses.tools import CalledTool
from server.state.active_responses import ActiveResponse
from tests.support.response_shapes import check_event


def new_response() -> ActiveResponse:
    record = StoredResponse("resp_1", "key_1", None, "in_progress", False, {}, 1_760_000_000)
    return ActiveResponse(record, recorded=False)


def event_writer(response: ActiveResponse, max_image_calls: int = 10, **options: Any) -> EventWriter:
    fields: dict[str, Any] = {"hosted": True, "logprobs": False, "called": {}, **options}
    return EventWriter(response, max_image_calls=max_image_calls, **fields)


def kinds(response: ActiveResponse) -> list[str]:
    return [event["type"].removeprefix("response.") for event in response.events]


async def test_a_text_is_a_message_whose_deltas_add_up() -> None:
    response = new_response()
    writer = event_writer(response)
    for text in ("He", "llo"):
        writer.write(TextDelta(0, text))
    writer.close("stop")
    assert kinds(response) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    for event in response.events:
        check_event(event)
    (item,) = response.output
    assert item["content"][0]["text"] == "Hello"
    assert item["status"] == "completed"
    assert writer.completed_items == [(0, item)]


async def test_a_text_that_was_cut_is_incomplete() -> None:
    response = new_response()
    writer = event_writer(response)
    writer.write(TextDelta(0, "He"))
    writer.close("length")
    assert response.output[0]["status"] == "incomplete"


async def test_log_probabilities_are_sent_only_on_request() -> None:
    token = TokenLogprob("He", b"He", -0.5)
    for asked, sent in ((True, 1), (False, 0)):
        response = new_response()
        writer = event_writer(response, logprobs=asked)
        writer.write(TextDelta(0, "He", (token,)))
        writer.close("stop")
        assert len(response.output[0]["content"][0]["logprobs"]) == sent


async def test_a_function_call_streams_its_arguments() -> None:
    response = new_response()
    writer = event_writer(response)
    writer.write(TextDelta(0, "Let me look."))
    writer.write(ToolCallDelta(0, 0, "", call_id="call_1", name="look"))
    writer.write(ToolCallDelta(0, 0, '{"a"'))
    writer.write(ToolCallDelta(0, 0, ": 1}"))
    writer.close("tool_calls")
    assert kinds(response)[-5:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert response.output[1]["arguments"] == '{"a": 1}'
    assert response.output[1]["call_id"] == "call_1"
    assert [call.name for call in writer.function_calls] == ["look"]


async def test_an_image_call_is_begun_and_left_open() -> None:
    response = new_response()
    writer = event_writer(response)
    writer.write(ToolCallDelta(0, 0, '{"prompt": "a boat"}', call_id="call_1", name="image_generation"))
    writer.close("tool_calls")
    assert kinds(response) == ["output_item.added", "image_generation_call.in_progress"]
    (call,) = writer.image_calls
    assert call.arguments == '{"prompt": "a boat"}'
    assert response.output[0]["result"] is None
    assert writer.completed_items == []


async def test_images_beyond_the_most_are_passed_over() -> None:
    response = new_response()
    writer = event_writer(response, max_image_calls=1)
    for index in range(3):
        writer.write(ToolCallDelta(0, index, "{}", call_id=f"call_{index}", name="image_generation"))
        writer.write(ToolCallDelta(0, index, " "))
    writer.close("tool_calls")
    assert len(writer.image_calls) == 1
    assert len(response.output) == 1


async def test_without_the_hosted_tool_its_name_is_a_function_like_any_other() -> None:
    response = new_response()
    writer = event_writer(response, hosted=False)
    writer.write(ToolCallDelta(0, 0, "{}", call_id="call_1", name="image_generation"))
    writer.close("tool_calls")
    assert writer.image_calls == []
    assert response.output[0]["type"] == "function_call"


async def test_what_was_thought_is_an_item_of_its_own() -> None:
    response = new_response()
    writer = event_writer(response)
    writer.write(ReasoningDelta(0, "hm"))
    writer.write(TextDelta(0, "Yes."))
    writer.close("stop")
    assert [item["type"] for item in response.output] == ["reasoning", "message"]
    assert response.output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


async def test_listeners_get_every_event_whenever_they_come() -> None:
    response = new_response()
    response.emit_snapshot("response.created")
    response.status = "in_progress"
    response.end("completed", {"completed_at": 1})
    assert [event["sequence_number"] async for event in response.follow()] == [0, 1]
    assert [event["sequence_number"] async for event in response.follow(0)] == [1]
    assert response.object()["completed_at"] == 1


async def test_a_custom_tool_gets_its_text_as_it_is() -> None:
    response = new_response()
    called = {"crm__patch": CalledTool("patch", "crm", is_custom=True, path="tools[0].tools[0]")}
    writer = event_writer(response, called=called)
    writer.write(ToolCallDelta(0, 0, "", call_id="call_1", name="crm__patch"))
    for piece in ('{"inp', 'ut": "+ a\\', "n- b \\u00e9", '"}'):
        writer.write(ToolCallDelta(0, 0, piece))
    writer.close("tool_calls")
    assert kinds(response) == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    for event in response.events:
        check_event(event)
    (item,) = response.output
    assert [event["delta"] for event in response.events if "delta" in event] == ["+ a", "\n- b é"]
    assert (item["type"], item["name"], item["namespace"], item["input"]) == (
        "custom_tool_call", "patch", "crm", "+ a\n- b é",
    )  # fmt: skip
    assert writer.function_calls
