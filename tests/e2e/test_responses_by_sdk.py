"""/v1/responses through OpenAI's Python SDK: rounds, pictures, streams, background."""

import base64
import io
import json
import time
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from tests.e2e.test_faults import assert_clean
from tests.e2e.test_images_by_sdk import picture
from tests.support.harness import Server, charges
from tests.support.response_shapes import check_event, check_response

MODEL = "starter-chat"
IMAGE: Any = {"type": "image_generation", "size": "256x256"}
DRAW: Any = {"tools": [IMAGE], "tool_choice": {"type": "image_generation"}, "max_output_tokens": 64}
CITY: Any = {
    "format": {
        "type": "json_schema",
        "name": "place",
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
    "parameters": {"type": "object", "properties": {"left": {"type": "boolean"}}, "required": ["left"]},
}


def drawn(response: Any) -> Any:
    (call,) = [item for item in response.output if item.type == "image_generation_call"]
    return call


def opened(call: Any) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(call.result)))


def test_a_text_is_answered_with_every_field(talking: Server) -> None:
    client = talking.openai()
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


def test_a_response_draws_in_the_place_that_it_has(talking: Server) -> None:
    made = talking.darkroom("keys", "create", "one", "--group", "chat", "--group", "beta-image-per-call")
    key_id, secret = made.stderr.split()[0], made.stdout.strip()
    talking.darkroom("keys", "set", key_id, "--max-running", "1")
    for _ in range(2):
        assert drawn(talking.openai(secret).responses.create(model=MODEL, input="a boat", **DRAW)).status == "completed"


def test_a_picture_is_drawn_stored_and_charged_once(talking: Server) -> None:
    before = charges(talking)
    response = talking.openai().responses.create(model=MODEL, input="draw a red boat", **DRAW)
    call = drawn(response)
    assert call.status == "completed"
    assert opened(call).size == (256, 256)
    assert call.revised_prompt
    assert call.size == "256x256"
    assert httpx.get(call.url, trust_env=False).content == base64.b64decode(call.result)
    assert charges(talking) == before + 1
    assert drawn(talking.openai().responses.retrieve(response.id)).result == call.result
    assert_clean(talking)


def test_without_the_tool_nothing_is_drawn_and_tools_is_empty(talking: Server) -> None:
    client = talking.openai()
    first = client.responses.create(model=MODEL, input="draw a red boat", **DRAW)
    second = client.responses.create(
        model=MODEL, input="make it blue", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.tools == []
    assert [item for item in second.output if item.type == "image_generation_call"] == []
    assert second.previous_response_id == first.id


def test_the_next_round_edits_the_newest_picture_and_an_explicit_one_wins(talking: Server) -> None:
    client = talking.openai()
    wide: Any = {**DRAW, "tools": [{**IMAGE, "size": "320x256"}]}
    edit: Any = {**DRAW, "tools": [{"type": "image_generation", "action": "edit"}]}
    first = client.responses.create(model=MODEL, input="draw a red boat", **wide)
    second = client.responses.create(model=MODEL, input="make it blue", previous_response_id=first.id, **edit)
    assert opened(drawn(second)).size == (320, 256)  # an edit without a size has its reference's
    uri = "data:image/png;base64," + base64.b64encode(picture(256, 384)).decode()
    shown: Any = [
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": uri}, {"type": "input_text", "text": "make it green"}],
        }
    ]
    third = client.responses.create(model=MODEL, input=shown, previous_response_id=second.id, **edit)
    assert opened(drawn(third)).size == (256, 384)
    (listed,) = client.responses.input_items.list(third.id).data
    assert listed.content[0].image_url == uri  # type: ignore[union-attr]
    fourth = client.responses.create(
        model=MODEL, input="again", previous_response_id=third.id, tool_choice="required", tools=edit["tools"]
    )
    assert opened(drawn(fourth)).size == (256, 384)


def test_a_picture_is_named_by_its_id_alone(talking: Server) -> None:
    client = talking.openai()
    call = drawn(client.responses.create(model=MODEL, input="a boat", **DRAW))
    named: Any = [{"type": "image_generation_call", "id": call.id}, {"role": "user", "content": "make it blue"}]
    edit: Any = {**DRAW, "tools": [{"type": "image_generation", "action": "edit"}]}
    assert opened(drawn(client.responses.create(model=MODEL, input=named, **edit))).size == (256, 256)


def test_nothing_to_edit_is_told_in_the_item(talking: Server) -> None:
    before = charges(talking)
    edit: Any = {**DRAW, "tools": [{**IMAGE, "action": "edit"}]}
    call = drawn(talking.openai().responses.create(model=MODEL, input="make it blue", **edit))
    assert (call.status, call.result) == ("failed", None)
    assert "no picture to edit" in call.error.message
    assert charges(talking) == before


def test_a_stream_tells_every_event_in_order(talking: Server) -> None:
    talking.openai().responses.create(model=MODEL, input="a boat", **DRAW)  # previews are learned from a first picture
    tools: Any = [{**IMAGE, "partial_images": 1}]
    stream = talking.openai().responses.create(model=MODEL, input="a red boat", stream=True, **{**DRAW, "tools": tools})
    events = [event.model_dump(exclude_unset=True) for event in stream]
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        check_event(event)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    image = [kind for kind in kinds if "image_generation_call" in kind]
    steps = ("in_progress", "generating", "partial_image", "completed")
    assert image == [f"response.image_generation_call.{step}" for step in steps]
    last = events[-1]["response"]
    check_response(last)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: item["id"]) == sorted(last["output"], key=lambda item: item["id"])


def test_the_stream_helper_builds_the_same_response_and_a_schema_is_kept(talking: Server) -> None:
    client = talking.openai()
    with client.responses.stream(model=MODEL, input="where?", text=CITY) as stream:
        for event in stream:
            assert event.type
        final = stream.get_final_response()
    assert json.loads(final.output_text)["city"] in {"Wien", "Graz"}
    assert final.text.format.type == "json_schema"  # type: ignore[union-attr]
    assert final.output_text == client.responses.retrieve(final.id).output_text


def test_a_function_is_called_and_told_what_came_of_it(talking: Server) -> None:
    client = talking.openai()
    stream = client.responses.create(
        model=MODEL, input="look", tools=[LOOK], tool_choice="required", parallel_tool_calls=False, stream=True
    )
    events = [event.model_dump(exclude_unset=True) for event in stream]
    for event in events:
        check_event(event)
    response = events[-1]["response"]
    call = next(item for item in response["output"] if item["type"] == "function_call")
    assert json.loads(call["arguments"])["left"] in {True, False}
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas if event["item_id"] == call["id"]) == call["arguments"]
    output: Any = [{"type": "function_call_output", "call_id": call["call_id"], "output": "a tree"}]
    told = client.responses.create(
        model=MODEL, input=output, previous_response_id=response["id"], tools=[LOOK], max_output_tokens=16
    )
    assert told.previous_response_id == response["id"]
    (listed,) = client.responses.input_items.list(told.id).data
    assert listed.type == "function_call_output"


def test_a_background_response_is_polled_and_its_stream_read_from_the_middle(talking: Server) -> None:
    client = talking.openai()
    response = client.responses.create(model=MODEL, input="a red boat", background=True, **DRAW)
    assert response.status in {"queued", "in_progress"}
    while response.status in {"queued", "in_progress"}:
        time.sleep(0.3)
        response = client.responses.retrieve(response.id)
    assert opened(drawn(response)).size == (256, 256)
    events = list(client.responses.retrieve(response.id, stream=True))
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    tail = list(client.responses.retrieve(response.id, stream=True, starting_after=events[3].sequence_number))
    assert [event.sequence_number for event in tail] == [event.sequence_number for event in events[4:]]
    assert drawn(tail[-1].response).result == drawn(response).result  # type: ignore[union-attr]


def test_a_background_response_is_cancelled_uncharged(talking: Server) -> None:
    client = talking.openai()
    before = charges(talking)
    slow: Any = [{"type": "image_generation", "model": "beta-3.1-flash-image-4k-count"}]
    response = client.responses.create(
        model=MODEL, input="a city", background=True, tools=slow, tool_choice="required", max_output_tokens=64
    )
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert charges(talking) == before
    assert_clean(talking)


def test_a_deleted_response_is_gone(talking: Server) -> None:
    client = talking.openai()
    response = client.responses.create(model=MODEL, input="hello", max_output_tokens=16)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input="more", previous_response_id=response.id)
    assert raised.value.code == "previous_response_not_found"


def test_store_false_keeps_nothing(talking: Server) -> None:
    client = talking.openai()
    response = client.responses.create(model=MODEL, input="hello", store=False, max_output_tokens=16)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_two_keys_do_not_see_each_others_responses(talking: Server) -> None:
    other = talking.openai(talking.darkroom("keys", "create", "other").stdout.strip())
    response = talking.openai().responses.create(model=MODEL, input="draw a boat", **DRAW)
    for look in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            look(response.id)
    with pytest.raises(openai.NotFoundError):
        other.responses.input_items.list(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        other.responses.create(model=MODEL, input="more", previous_response_id=response.id)
    assert raised.value.code == "previous_response_not_found"
    named: Any = [{"type": "image_generation_call", "id": drawn(response).id}]
    with pytest.raises(openai.BadRequestError):
        other.responses.create(model=MODEL, input=named, **DRAW)


def test_a_key_without_the_image_models_group_is_refused_before_anything_runs(talking: Server) -> None:
    secret = talking.darkroom("keys", "create", "talker", "--group", "chat").stdout.strip()
    client = talking.openai(secret)
    assert client.responses.create(model=MODEL, input="hello", max_output_tokens=16).id
    with pytest.raises(openai.PermissionDeniedError) as raised:
        client.responses.create(model=MODEL, input="draw a boat", **DRAW)
    assert raised.value.code == "group_mismatch"


def test_an_empty_budget_is_said_and_nothing_is_charged(talking: Server) -> None:
    secret = talking.darkroom("keys", "create", "poor", "--budget", "0.05").stdout.strip()
    with pytest.raises(openai.RateLimitError) as raised:
        talking.openai(secret).responses.create(model=MODEL, input="draw a boat", **DRAW)
    assert raised.value.code == "insufficient_quota"
    assert_clean(talking)


def test_a_retry_with_the_same_idempotency_key_gets_the_first_answer_and_is_charged_once(talking: Server) -> None:
    before = charges(talking)
    body: Any = {"model": MODEL, "input": "draw a red boat", **DRAW}
    with talking.http() as client:
        answers = [client.post("/v1/responses", json=body, headers={"Idempotency-Key": "once"}) for _ in range(2)]
        other = client.post("/v1/responses", json={**body, "input": "x"}, headers={"Idempotency-Key": "once"})
    assert answers[0].json() == answers[1].json()
    assert "idempotency-replayed" in answers[1].headers
    assert other.status_code == 422
    assert charges(talking) == before + 1


def test_an_answer_can_be_kept_alive_by_spaces(talking: Server) -> None:
    with talking.http() as client:
        body = {"model": MODEL, "input": "hello", "max_output_tokens": 16}
        answer = client.post("/v1/responses", json=body, headers={"X-Keepalive": "1"})
    assert answer.status_code == 200
    assert "content-length" not in answer.headers
    check_response(answer.json())


def test_truncation_cuts_whole_turns_or_says_how_long_it_is(talking: Server) -> None:
    client = talking.openai()
    long: Any = [{"role": "user", "content": "word " * 100}] * 30
    with pytest.raises(openai.BadRequestError, match="maximum context length is") as raised:
        client.responses.create(model=MODEL, input=long, max_output_tokens=16)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")
    answer = client.responses.create(model=MODEL, input=long, max_output_tokens=16, truncation="auto")
    assert answer.truncation == "auto"
