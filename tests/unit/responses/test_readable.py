"""What a response reads of an input that other servers and clients have written to."""

import base64
import json
from typing import Any

import pytest

from server.errors import BadRequest
from server.flows.responses.items import write_summary
from server.flows.responses.request import read_response, readable_input

PIXEL = f"data:image/png;base64,{base64.b64encode(b'pixel').decode()}"
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
PDF = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}


def read(*items: Any) -> tuple[list[Any], list[str]]:
    """Return the valid items between two messages of the user, and what was left out."""
    body, left_out = read_response({"model": "m", "input": [HELLO, *items, HELLO]})
    assert not isinstance(body.input, str)
    return [item.model_dump(exclude_none=True) for item in body.input[1:-1]], left_out


def user(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def output(value: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c1", "output": value}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (PDF, "[file: a.pdf]"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "[audio]"),
        ({"type": "novel", "name": "x"}, "[novel: x]"),
        ({"type": "search_result", "title": "T", "content": [{"type": "text", "text": "found"}]},
         "[search_result: T]\nfound"),
        (7, "[block]"),
    ],
)  # fmt: skip
def test_a_part_of_an_earlier_message_becomes_a_text_and_is_named(part: Any, text: str) -> None:
    (message,), left_out = read(user({"type": "input_text", "text": "see"}, part))
    assert message["content"] == [{"type": "input_text", "text": "see"}, {"type": "input_text", "text": text}]
    assert left_out == ["input[1].content[1]"]
    (message,), _ = read({"role": "assistant", "content": [part]})
    assert message["content"] == [{"type": "output_text", "text": text}]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "ghost_snapshot", "ghost_commit": {}},
        {"type": "compaction", "encrypted_content": "gAAAAx"},
        {"type": "additional_tools", "tools": []},
        {"type": "agent_message", "content": []},
        {"type": "image_generation_call"},
    ],
)
def test_an_unknown_item_becomes_a_text_and_is_named(item: dict[str, Any]) -> None:
    (message,), left_out = read(item)
    assert (message["role"], left_out) == ("user", ["input[1]"])
    assert message["content"] == [{"type": "input_text", "text": f"[{item['type']}]"}]


def test_what_the_last_message_holds_is_refused_with_what_works() -> None:
    for items in (
        [user(PDF)],
        [HELLO, user({"type": "input_text", "text": "sum"}, PDF)],
        [user(PDF), {"type": "image_generation_call", "id": "ig_1"}],
    ):
        with pytest.raises(BadRequest, match="send the text of the file"):
            readable_input(items)
    for last in ({"type": "novel"}, {"type": "compaction_trigger"}):
        with pytest.raises(BadRequest):
            read_response({"model": "m", "input": [HELLO, last]})


def test_what_a_tool_of_another_server_returned_is_not_refused() -> None:
    for kind in ("computer_call_output", "program_output"):
        items, left_out = readable_input([HELLO, {"type": kind, "call_id": "c1", "output": {"type": "novel"}}])
        assert isinstance(items, list)
        assert (items[1]["content"][0]["text"], left_out) == (f"[{kind}]", ["input[1]"])


def test_a_message_that_another_model_has_begun_to_answer_is_not_refused() -> None:
    for said in (CALL, {"type": "reasoning", "summary": []}, {"role": "assistant", "content": "I look."}):
        _, left_out = readable_input([user(PDF), said, CALL, output("x")])
        assert left_out == ["input[0].content[0]"]


@pytest.mark.parametrize(
    ("value", "expected", "left_out"),
    [
        (None, "", []),
        ([], "", []),
        ("x", "x", []),
        ({"a": 1}, '{"a": 1}', []),
        ([{"type": "output_text", "text": "x"}, {"type": "text", "text": "y"}],
         [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}], []),
        ([PDF], [{"type": "input_text", "text": "[file: a.pdf]"}], ["input[2].output[0]"]),
        ([{"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}}],
         [{"type": "input_image", "image_url": PIXEL, "detail": "high"}], []),
    ],
)  # fmt: skip
def test_what_a_tool_returned_is_never_refused(value: Any, expected: Any, left_out: list[str]) -> None:
    (_, made), named = read(CALL, output(value))
    assert (made["output"], named) == (expected, left_out)
    body, _ = read_response({"model": "m", "input": [HELLO, CALL, output(value)]})
    assert body.input[2].model_dump(exclude_none=True)["output"] == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({**CALL, "status": "failed"}, CALL),
        ({**CALL, "id": "", "status": None}, CALL),
        ({**CALL, "arguments": {"a": 1}}, {**CALL, "arguments": '{"a": 1}'}),
        ({**CALL, "arguments": None}, CALL),
        ({"role": "assistant", "status": "failed", "content": [{"type": "text", "text": "x"}]},
         {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}),
        ({"role": "assistant", "content": []}, {"type": "message", "role": "assistant", "content": ""}),
        ({"role": "assistant", "content": None}, {"type": "message", "role": "assistant", "content": ""}),
        ({"role": "tool", "tool_call_id": "c1", "content": "x"},
         {"type": "function_call_output", "call_id": "c1", "output": "x"}),
        ({"type": "reasoning", "summary": None, "content": "hm"},
         {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
        (user({"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": PIXEL}}),
         user({"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": PIXEL})),
        (user({"type": "input_image", "image_url": {"url": PIXEL}, "detail": "original", "file_id": None}),
         user({"type": "input_image", "image_url": PIXEL, "detail": "original"})),
    ],
)  # fmt: skip
def test_other_words_for_the_same_are_read(item: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read(item) == ([expected], [])


def test_a_summary_of_this_server_is_read() -> None:
    item = {"type": "compaction", "encrypted_content": write_summary("so far")}
    assert read(item) == ([item], [])


def test_tools_in_the_shape_of_chats_are_read() -> None:
    schema = {"type": "object", "properties": {}}
    function = {"name": "look", "description": "d", "parameters": schema}
    flat = {"type": "function", **function}
    for tool in ({"type": "function", "function": function}, {"function": function}, function, flat):
        values = {
            "model": "m",
            "input": "x",
            "tools": [tool],
            "tool_choice": {"type": "function", "function": function},
        }
        body, _ = read_response(values)
        assert [each.model_dump(exclude_none=True) for each in body.tools] == [flat]
        assert body.tool_choice.name == "look"  # type: ignore[union-attr]
    with pytest.raises(BadRequest) as raised:
        read_response({"model": "m", "input": "x", "tools": [{"type": "function", "function": {"parameters": schema}}]})
    assert raised.value.param == "tools[0].name"


def test_a_long_history_of_every_kind_stays_one() -> None:
    kinds = [PDF, {"type": "input_text", "text": "x"}, "bare"]
    items = [user(*kinds) for _ in range(50)] + [CALL, output(json.loads('{"a": [1]}')), {"type": "novel"}]
    made, left_out = read(*items)
    assert len(made) == len(items)
    assert len(left_out) == 51
