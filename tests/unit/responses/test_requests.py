"""What a response may be asked in words."""

from typing import Any

import pytest

from server.errors import BadRequest
from server.flows.responses.request import read_response
from server.schemas.chat_messages import MAX_TEXT
from server.schemas.response_object import echo
from server.schemas.response_tools import leave_out_hosted_tools
from server.schemas.responses import ResponseBody
from server.schemas.validation import validate

LONG = "x" * (MAX_TEXT + 1)
CALL = {"type": "function_call", "call_id": "c", "name": "f"}
TOO_LONG: list[tuple[dict[str, Any], str]] = [
    ({"input": LONG}, "input"),
    ({"input": [{"role": "user", "content": LONG}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]}, "input[0].content[0].text"),
    ({"input": [{**CALL, "arguments": LONG}]}, "input[0].arguments"),
    ({"input": "x", "instructions": LONG}, "instructions"),
    ({"input": "x", "tools": [{"type": "function", "name": "f", "description": LONG}]}, "tools[0].description"),
]


@pytest.mark.parametrize(("values", "param"), TOO_LONG, ids=[param for _, param in TOO_LONG])
def test_a_text_that_is_too_long_is_named(values: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match="string too long") as raised:
        validate(ResponseBody, values, strict=True)
    assert (raised.value.param, raised.value.code) == (param, "string_above_max_length")


def test_an_image_may_be_longer() -> None:
    validate(ResponseBody, {"input": [{"type": "image_generation_call", "id": "ig_1", "result": LONG}]}, strict=True)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("web_search_preview", "does not search the web"),
        ("mcp", "calls no MCP servers"),
        ("code_interpreter", "runs no code"),
        ("file_search", "stores no files"),
        ("computer_use_preview", "drives no computer"),
    ],
)
def test_a_tool_of_the_hosted_service_is_refused_with_what_there_is(kind: str, what: str) -> None:
    function = {"type": "function", "name": "f"}
    with pytest.raises(
        BadRequest, match=f"{what}.*Tools here: function, custom, namespace, image_generation"
    ) as raised:
        leave_out_hosted_tools({"tools": [function, {"type": kind}], "tool_choice": {"type": kind}})
    assert (raised.value.param, raised.value.code) == ("tools[1].type", "invalid_value")
    with pytest.raises(BadRequest, match=what):
        leave_out_hosted_tools({"tools": [{"type": kind}], "tool_choice": "required"})
    for tools in (
        [function, {"type": "image_generation"}],
        None,
        "x",
        [3],
        [{"type": 7}],
        [{"type": "f", "parameters": {}}],
    ):
        assert leave_out_hosted_tools({"tools": tools}) == ({"tools": tools}, [])


def test_a_hosted_tool_that_the_model_merely_may_call_is_left_out() -> None:
    function, search = {"type": "function", "name": "f"}, {"type": "web_search", "external_web_access": True}
    for choice in (None, "auto", "none", "required", {"type": "function", "name": "f"}):
        values, left_out = leave_out_hosted_tools({"tools": [search, function], "tool_choice": choice})
        assert (values, left_out) == ({"tools": [function], "tool_choice": choice}, ["tools[0]"])
    for tool in (search, {"type": "programmatic_tool_calling"}, {"type": "x_search"}, {"type": "novel", "name": "n"}):
        assert leave_out_hosted_tools({"tools": [tool]}) == ({"tools": []}, ["tools[0]"])
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, function]}
    values, _ = leave_out_hosted_tools({"tools": [search, function], "tool_choice": allowed})
    assert values["tool_choice"] == {**allowed, "tools": [function]}
    values, _ = leave_out_hosted_tools({"tools": [search], "tool_choice": {**allowed, "tools": [search]}})
    assert values["tool_choice"] == "none"


def test_what_no_answer_has_is_not_included_and_named() -> None:
    body, left_out = read_response({"input": "Hi", "include": ["novel.sources", "reasoning.encrypted_content"]})
    assert (body.include, left_out) == (["reasoning.encrypted_content"], ["include[0]"])


def test_an_empty_id_goes_on_from_nothing() -> None:
    assert read_response({"input": "Hi", "previous_response_id": ""})[0].previous_response_id is None


def test_an_answer_repeats_the_sampling_that_holds() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0}
    body, _ = read_response({"input": "Hi", "temperature": 0.2})
    repeated = echo(body, "m", defaults, "flex")
    assert (repeated["temperature"], repeated["top_p"], repeated["presence_penalty"]) == (0.2, 0.95, 0.0)
    assert echo(body, "m", {}, "default")["top_p"] == 1.0
    assert "top_k" not in repeated
