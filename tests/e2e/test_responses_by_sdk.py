"""/v1/responses through OpenAI's Python SDK: turns, images, streams, background.

The chat model is untrained. Limits and closed schemas bound what it writes, so that every later turn fits its context.
"""

import base64
import io
import json
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from tests.e2e.test_images_by_sdk import image
from tests.support.harness import Server, assert_clean, charges, until
from tests.support.response_shapes import check_event, check_response

MODEL = "starter-chat"
IMAGE: Any = {"type": "image_generation", "size": "256x256"}
LIMITS: Any = {"temperature": 0, "max_output_tokens": 64}
FORCED_IMAGE: Any = {"tools": [IMAGE], "tool_choice": {"type": "image_generation"}, **LIMITS}
CITY: Any = {
    "format": {
        "type": "json_schema",
        "name": "city",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Wien", "Graz"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
}
LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Look somewhere",
    "parameters": {
        "type": "object",
        "properties": {"left": {"type": "boolean"}},
        "required": ["left"],
        "additionalProperties": False,
    },
}


def image_call(response: Any) -> Any:
    (call,) = [item for item in response.output if item.type == "image_generation_call"]
    return call


def decode(call: Any) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(call.result)))


def test_a_text_is_answered_with_every_field(responses_server: Server) -> None:
    client = responses_server.openai()
    answer = client.responses.with_raw_response.create(
        model=MODEL, input="hello", instructions="be short", max_output_tokens=16, metadata={"a": "b"}, temperature=0.5
    )
    body = answer.http_response.json()
    check_response(body)
    assert (body["metadata"], body["instructions"], body["temperature"]) == ({"a": "b"}, "be short", 0.5)
    assert body["tools"] == []
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
    counted = client.responses.input_tokens.count(model=MODEL, input="hello", instructions="be short")
    assert counted.input_tokens == body["usage"]["input_tokens"]
    again = client.responses.retrieve(body["id"])
    assert again.output_text == answer.parse().output_text


def test_a_response_and_its_image_count_as_one_call(responses_server: Server) -> None:
    secret = responses_server.new_key("one", groups=["chat", "beta-image-per-call"], max_running=1)
    client = responses_server.openai(secret)
    for _ in range(2):
        assert image_call(client.responses.create(model=MODEL, input="a boat", **FORCED_IMAGE)).status == "completed"


def test_an_image_is_generated_stored_and_charged_once(responses_server: Server) -> None:
    before = charges(responses_server)
    response = responses_server.openai().responses.create(model=MODEL, input="draw a red boat", **FORCED_IMAGE)
    call = image_call(response)
    assert call.status == "completed"
    assert decode(call).size == (256, 256)
    assert call.revised_prompt
    assert call.size == "256x256"
    assert httpx.get(call.url, timeout=60, trust_env=False).content == base64.b64decode(call.result)
    assert charges(responses_server) == before + 1
    assert image_call(responses_server.openai().responses.retrieve(response.id)).result == call.result
    assert_clean(responses_server)


def test_without_the_tool_no_image_is_generated_and_tools_is_empty(responses_server: Server) -> None:
    client = responses_server.openai()
    first = client.responses.create(model=MODEL, input="draw a red boat", **FORCED_IMAGE)
    second = client.responses.create(
        model=MODEL, input="make it blue", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.tools == []
    assert [item for item in second.output if item.type == "image_generation_call"] == []
    assert second.previous_response_id == first.id


def test_the_next_turn_edits_the_newest_image_unless_one_is_given(responses_server: Server) -> None:
    client = responses_server.openai()
    wide: Any = {**FORCED_IMAGE, "tools": [{**IMAGE, "size": "320x256"}]}
    edit: Any = {**FORCED_IMAGE, "tools": [{"type": "image_generation", "action": "edit"}]}
    first = client.responses.create(model=MODEL, input="draw a red boat", **wide)
    second = client.responses.create(model=MODEL, input="make it blue", previous_response_id=first.id, **edit)
    assert decode(image_call(second)).size == (320, 256)  # an edit without a size has its reference's
    uri = "data:image/png;base64," + base64.b64encode(image(256, 384)).decode()
    with_image: Any = [
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": uri}, {"type": "input_text", "text": "make it green"}],
        }
    ]
    third = client.responses.create(model=MODEL, input=with_image, previous_response_id=second.id, **edit)
    assert decode(image_call(third)).size == (256, 384)
    (listed,) = client.responses.input_items.list(third.id).data
    assert listed.content[0].image_url == uri  # type: ignore[union-attr]
    fourth = client.responses.create(
        model=MODEL, input="again", previous_response_id=third.id, **{**edit, "tool_choice": "required"}
    )
    assert decode(image_call(fourth)).size == (256, 384)


def test_an_image_is_referenced_by_its_id_alone(responses_server: Server) -> None:
    client = responses_server.openai()
    call = image_call(client.responses.create(model=MODEL, input="a boat", **FORCED_IMAGE))
    named: Any = [{"type": "image_generation_call", "id": call.id}, {"role": "user", "content": "make it blue"}]
    edit: Any = {**FORCED_IMAGE, "tools": [{"type": "image_generation", "action": "edit"}]}
    assert decode(image_call(client.responses.create(model=MODEL, input=named, **edit))).size == (256, 256)


def test_an_edit_without_an_image_fails_in_its_item(responses_server: Server) -> None:
    before = charges(responses_server)
    edit: Any = {**FORCED_IMAGE, "tools": [{**IMAGE, "action": "edit"}]}
    call = image_call(responses_server.openai().responses.create(model=MODEL, input="make it blue", **edit))
    assert (call.status, call.result) == ("failed", None)
    assert "no image to edit" in call.error.message
    assert charges(responses_server) == before


def test_a_stream_has_every_event_in_order(responses_server: Server) -> None:
    responses_server.openai().responses.create(model=MODEL, input="a boat", **FORCED_IMAGE)  # fits the previews
    tools: Any = [{**IMAGE, "partial_images": 1}]
    stream = responses_server.openai().responses.create(
        model=MODEL, input="a red boat", stream=True, **{**FORCED_IMAGE, "tools": tools}
    )
    events = [event.model_dump(exclude_unset=True) for event in stream]
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        check_event(event)
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] in {"response.completed", "response.incomplete"}
    image = [name for name in types if "image_generation_call" in name]
    steps = ("in_progress", "generating", "partial_image", "completed")
    assert image == [f"response.image_generation_call.{step}" for step in steps]
    last = events[-1]["response"]
    check_response(last)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: item["id"]) == sorted(last["output"], key=lambda item: item["id"])


def test_the_stream_helper_builds_the_same_response_and_a_schema_is_enforced(responses_server: Server) -> None:
    client = responses_server.openai()
    with client.responses.stream(model=MODEL, input="where?", text=CITY, **LIMITS) as stream:
        for event in stream:
            assert event.type
        final = stream.get_final_response()
    assert json.loads(final.output_text)["city"] in {"Wien", "Graz"}
    assert final.text.format.type == "json_schema"  # type: ignore[union-attr]
    assert final.output_text == client.responses.retrieve(final.id).output_text


def test_a_function_call_and_its_result_make_two_turns(responses_server: Server) -> None:
    client = responses_server.openai()
    once: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    stream = client.responses.create(model=MODEL, input="look", tools=[LOOK], stream=True, **once, **LIMITS)
    events = [event.model_dump(exclude_unset=True) for event in stream]
    for event in events:
        check_event(event)
    response = events[-1]["response"]
    call = next(item for item in response["output"] if item["type"] == "function_call")
    assert json.loads(call["arguments"])["left"] in {True, False}
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas if event["item_id"] == call["id"]) == call["arguments"]
    output: Any = [{"type": "function_call_output", "call_id": call["call_id"], "output": "a tree"}]
    second = client.responses.create(
        model=MODEL, input=output, previous_response_id=response["id"], tools=[LOOK], **LIMITS
    )
    assert second.previous_response_id == response["id"]
    (listed,) = client.responses.input_items.list(second.id).data
    assert listed.type == "function_call_output"


def test_a_background_response_is_polled_and_its_stream_read_from_the_middle(responses_server: Server) -> None:
    client = responses_server.openai()
    response = client.responses.create(model=MODEL, input="a red boat", background=True, **FORCED_IMAGE)
    assert response.status in {"queued", "in_progress"}
    until(lambda: client.responses.retrieve(response.id).status not in {"queued", "in_progress"})
    response = client.responses.retrieve(response.id)
    assert decode(image_call(response)).size == (256, 256)
    events = list(client.responses.retrieve(response.id, stream=True))
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    tail = list(client.responses.retrieve(response.id, stream=True, starting_after=events[3].sequence_number))
    assert [event.sequence_number for event in tail] == [event.sequence_number for event in events[4:]]
    assert image_call(tail[-1].response).result == image_call(response).result  # type: ignore[union-attr]


def test_a_background_response_is_cancelled_uncharged(responses_server: Server) -> None:
    client = responses_server.openai()
    before = charges(responses_server)
    slow: Any = [{"type": "image_generation", "model": "beta-3.1-flash-image-4k-count"}]
    response = client.responses.create(
        model=MODEL, input="a city", background=True, tools=slow, tool_choice="required", **LIMITS
    )
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert charges(responses_server) == before
    assert_clean(responses_server)


def test_a_deleted_response_is_gone(responses_server: Server) -> None:
    client = responses_server.openai()
    response = client.responses.create(model=MODEL, input="hello", max_output_tokens=16)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input="more", previous_response_id=response.id)
    assert raised.value.code == "previous_response_not_found"


def test_store_false_stores_nothing(responses_server: Server) -> None:
    client = responses_server.openai()
    response = client.responses.create(model=MODEL, input="hello", store=False, max_output_tokens=16)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_two_keys_do_not_see_each_others_responses(responses_server: Server) -> None:
    other = responses_server.openai(responses_server.new_key("other"))
    response = responses_server.openai().responses.create(model=MODEL, input="draw a boat", **FORCED_IMAGE)
    for method in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            method(response.id)
    with pytest.raises(openai.NotFoundError):
        other.responses.input_items.list(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        other.responses.create(model=MODEL, input="more", previous_response_id=response.id)
    assert raised.value.code == "previous_response_not_found"
    named: Any = [{"type": "image_generation_call", "id": image_call(response).id}]
    with pytest.raises(openai.BadRequestError):
        other.responses.create(model=MODEL, input=named, **FORCED_IMAGE)


def test_a_key_without_the_image_models_group_is_refused_before_anything_runs(responses_server: Server) -> None:
    secret = responses_server.new_key("talker", groups=["chat"])
    client = responses_server.openai(secret)
    assert client.responses.create(model=MODEL, input="hello", max_output_tokens=16).id
    with pytest.raises(openai.PermissionDeniedError) as raised:
        client.responses.create(model=MODEL, input="draw a boat", **FORCED_IMAGE)
    assert raised.value.code == "group_mismatch"


def test_an_exhausted_budget_is_refused_uncharged(responses_server: Server) -> None:
    secret = responses_server.new_key("poor", budget="0.05")
    with pytest.raises(openai.RateLimitError) as raised:
        responses_server.openai(secret).responses.create(model=MODEL, input="draw a boat", **FORCED_IMAGE)
    assert raised.value.code == "insufficient_quota"
    assert_clean(responses_server)


def test_a_retry_by_idempotency_key_gets_the_first_answer_and_is_charged_once(
    responses_server: Server,
) -> None:
    before = charges(responses_server)
    body: Any = {"model": MODEL, "input": "draw a red boat", **FORCED_IMAGE}
    with responses_server.http() as client:
        answers = [client.post("/v1/responses", json=body, headers={"Idempotency-Key": "once"}) for _ in range(2)]
        other = client.post("/v1/responses", json={**body, "input": "x"}, headers={"Idempotency-Key": "once"})
    assert answers[0].json() == answers[1].json()
    assert "idempotency-replayed" in answers[1].headers
    assert other.status_code == 422
    assert charges(responses_server) == before + 1


def test_an_answer_can_be_kept_alive_by_spaces(responses_server: Server) -> None:
    with responses_server.http() as client:
        body = {"model": MODEL, "input": "hello", "max_output_tokens": 16}
        answer = client.post("/v1/responses", json=body, headers={"X-Keepalive": "1"})
    assert answer.status_code == 200
    assert "content-length" not in answer.headers
    check_response(answer.json())


def test_truncation_drops_whole_turns_or_names_the_length(responses_server: Server) -> None:
    client = responses_server.openai()
    long: Any = [{"role": "user", "content": "word " * 100}] * 30
    with pytest.raises(openai.BadRequestError, match="maximum context length is") as raised:
        client.responses.create(model=MODEL, input=long, max_output_tokens=16)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")
    answer = client.responses.create(model=MODEL, input=long, max_output_tokens=16, truncation="auto")
    assert answer.truncation == "auto"
