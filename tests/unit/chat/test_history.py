"""What a chat reads of messages that other servers and clients have written to."""

from typing import Any

import pytest

from server.errors import BadRequest
from server.flows.chat.parse import parse_chat
from server.flows.chat.request import ChatRequest
from server.flows.chat.shown_images import shown_request, with_tool_images_as_user

HELLO = {"role": "user", "content": "Hello"}
URL = "https://example.com/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
SHOWN = {"type": "image_url", "image_url": {"url": ""}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}


def parsed(*messages: Any) -> ChatRequest:
    return parse_chat({"model": "m", "messages": list(messages)})


def read(*messages: Any) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the messages between two of the user, and what was left out."""
    request = parsed(HELLO, *messages, HELLO)
    return [dict(message) for message in request.messages[1:-1]], request.left_out


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("part", "mark"),
    [
        (FILE, "[file: a.pdf]"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "[audio]"),
        ({"type": "image_url", "image_url": {}}, "[image]"),
        ({"type": "document", "title": "T", "source": {"type": "base64", "data": "AAAA"}}, "[file: T]"),
        (None, "[block]"),
    ],
)
def test_a_part_of_an_earlier_message_becomes_a_text_and_is_named(part: Any, mark: str) -> None:
    for role in ("user", "assistant", "system", "tool"):
        answers = {"tool_call_id": "c1"} if role == "tool" else {}
        sent = {"role": role, "content": [text("see"), part], **answers}
        *_, made = read(ASKS, sent)[0]
        assert made["content"] == f"see\n{mark}"
        assert read(ASKS, sent)[1] == ("messages[2].content[1]",)


def test_what_the_last_message_holds_is_refused_with_what_works() -> None:
    for messages in (
        [{"role": "user", "content": [FILE]}],
        [{"role": "user", "content": [FILE]}, HELLO | {"role": "system"}],
    ):
        with pytest.raises(BadRequest, match="send the text of the file") as raised:
            parsed(*messages)
        assert raised.value.param == "messages[0].content[0].type"


@pytest.mark.parametrize(
    "odd", [{"reasoning": {"effort": "low"}}, {"reasoning_content": [text("hm")]}, {"images": ["a"]}]
)
def test_a_call_stays_beside_a_field_that_can_not_be_read(odd: dict[str, Any]) -> None:
    made, left_out = read({**ASKS, **odd}, {"role": "tool", "tool_call_id": "c1", "content": "x"})
    assert made[0]["tool_calls"] == [CALL]
    assert left_out == ("messages[1]",)


def test_a_result_by_anthropics_words_is_a_text() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("4 °C")]}
    request = parsed(HELLO, {"role": "user", "content": [result, text("go on")]})
    assert request.messages[-1]["content"] == "[tool_result]\n4 °C\ngo on"
    assert request.left_out == ("messages[1].content[0]",)


def test_a_message_that_another_model_has_begun_to_answer_is_not_refused() -> None:
    request = parsed({"role": "user", "content": [FILE]}, ASKS, {"role": "tool", "tool_call_id": "c1", "content": "x"})
    assert request.messages[0]["content"] == "[file: a.pdf]"
    assert request.left_out == ("messages[0].content[0]",)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, "b"]}, "a\nb"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "a"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": URL}]}, [SHOWN]),
        ({"role": "user", "content": [{"type": "input_image", "image_url": URL}]}, [SHOWN]),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]}, [SHOWN]),
        ({"role": "user", "content": None}, ""),
        ({"role": "system", "content": []}, ""),
        ({"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, "a"),
        ({"role": "assistant", "content": []}, ""),
        ({"role": "assistant"}, ""),
        ({"role": "tool", "tool_call_id": "c1", "content": None}, ""),
        ({"role": "tool", "tool_call_id": "c1", "content": {"a": 1}}, '{"a": 1}'),
    ],
)
def test_other_words_for_the_same_are_read(message: dict[str, Any], expected: Any) -> None:
    (made,), left_out = read(message)
    assert (made["content"], left_out) == (expected, ())


def test_details_that_are_unknown_are_none() -> None:
    for detail in ("original", "", None):
        request = parsed({"role": "user", "content": [{**IMAGE, "image_url": {"url": URL, "detail": detail}}]})
        assert [image.source for image in request.images] == [URL]


@pytest.mark.parametrize(
    "call",
    [
        {**CALL, "function": {"name": "look", "arguments": {}}},
        {**CALL, "function": {"name": "look", "arguments": None}},
        {"id": "c1", "function": {"name": "look"}},
    ],
)
def test_calls_without_what_servers_leave_out_are_read(call: dict[str, Any]) -> None:
    (made, _), _ = read({**ASKS, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "x"})
    assert made["tool_calls"] == [CALL]


def test_calls_without_ids_get_them_in_their_order() -> None:
    calls = [{"type": "function", "function": CALL["function"]}, {**CALL, "id": ""}]
    results = [{"role": "tool", "content": "a"}, {"role": "tool", "tool_call_id": "", "content": "b"}]
    (made, first, second), _ = read({**ASKS, "tool_calls": calls}, *results)
    assert [call["id"] for call in made["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert first["tool_call_id"] != second["tool_call_id"]


def test_functions_of_the_time_before_tools_are_read() -> None:
    asks = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    (made, result), left_out = read(asks, {"role": "function", "name": "look", "content": "x"})
    (call,) = made["tool_calls"]
    assert (call["function"], call["id"], left_out) == (CALL["function"], result["tool_call_id"], ())


def test_thoughts_among_the_parts_of_an_answer_are_its_reasoning() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, text("hi")]
    (made,), left_out = read({"role": "assistant", "content": parts})
    assert (made["content"], made["reasoning_content"], left_out) == ("hi", "hm", ())


@pytest.mark.parametrize(
    "message",
    [
        {"role": "critic", "content": "no"},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "type": "mcp"}]},
        {"role": "assistant", "content": "x", "audio": {"id": "a"}},
        {"role": "user", "content": "x", "name": 5},
    ],
)
def test_a_message_that_is_wrong_keeps_its_text(message: dict[str, Any]) -> None:
    (made,), left_out = read(message)
    assert made["content"] == message["content"]
    assert len(left_out) == 1


RESULT = {"role": "tool", "tool_call_id": "c1", "content": [text("shot"), IMAGE]}


def test_images_of_tools_are_shown_by_the_user_after_the_results() -> None:
    other = {"role": "tool", "tool_call_id": "c2", "content": [IMAGE]}
    said = {"role": "assistant", "content": "ok"}
    made = list(with_tool_images_as_user([HELLO, ASKS, RESULT, other, HELLO, said, RESULT, said, RESULT]))
    assert [message["role"] for message in made] == [
        "user", "assistant", "tool", "tool", "user", "assistant", "tool", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    assert [message["content"] for message in made[2:5]] == ["shot", "[image]", [IMAGE, IMAGE, text("Hello")]]
    assert made[7]["content"] == made[10]["content"] == [IMAGE]
    assert list(with_tool_images_as_user(made)) == made


@pytest.mark.parametrize("sees", [True, False])
def test_a_model_gets_the_images_of_tools_or_their_marks(sees: bool) -> None:
    request, left_out = shown_request(parsed(HELLO, ASKS, RESULT), sees=sees, leave_out=False)
    assert len(request.images) == sees
    assert left_out == ([] if sees else ["messages[2].content[1].image_url"])
    if sees:
        assert [message["content"] for message in request.messages[2:]] == ["shot", [SHOWN]]
    else:
        assert request.messages[2]["content"] == [text("shot"), text("[image]")]


def test_a_model_that_does_not_see_is_told_of_earlier_images() -> None:
    looks, said = {"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "ok"}
    request, left_out = shown_request(parsed(looks, ASKS, RESULT, said, looks), sees=False, leave_out=False)
    assert [image.field for image in request.images] == ["messages[4].content[0].image_url"]  # it is refused later
    assert len(left_out) == 2
    request, left_out = shown_request(parsed(looks, looks), sees=False, leave_out=True)
    assert (request.images, len(left_out)) == ((), 2)
    after_result = parsed(HELLO, ASKS, {**RESULT, "content": "shot"}, looks)
    assert shown_request(after_result, sees=False, leave_out=False)[0].images == ()


def test_a_model_that_sees_is_shown_the_newest_images() -> None:
    looks = {"role": "user", "content": [IMAGE] * 20}
    request, left_out = shown_request(parsed(looks, looks), sees=True, leave_out=False)
    assert (len(request.images), len(left_out)) == (32, 8)
    assert left_out[0] == "messages[0].content[0].image_url"
    assert request.images[0].field == "messages[0].content[8].image_url"
    assert [part["type"] for part in request.messages[0]["content"]] == ["text"] * 8 + ["image_url"] * 12
