"""Structured answers, tool loops and images through OpenAI's SDK, with untrained models.

Schemas of enums, booleans and short arrays bound what such a model writes.
"""

import base64
import io
import json
from typing import Any, Literal

import openai
import pytest
from PIL import Image
from pydantic import BaseModel

from tests.support.harness import Server

HELLO: list[Any] = [{"role": "user", "content": "How is it in Wien?"}]
GREEDY: dict[str, Any] = {"model": "small", "messages": HELLO, "temperature": 0, "max_tokens": 200}


class Report(BaseModel):
    """What the weather is like."""

    city: Literal["Wien", "Graz"]
    sky: list[Literal["sun", "rain"]]
    warm: bool


def function(name: str, **properties: Any) -> Any:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


WEATHER = function("weather", city={"type": "string", "enum": ["Wien", "Graz"]})
CLOCK = function("clock", zone={"type": "string", "enum": ["CET", "UTC"]})
TOOLS: dict[str, Any] = {**GREEDY, "tools": [WEATHER, CLOCK], "parallel_tool_calls": False}


@pytest.mark.parametrize("seed", range(4))
def test_parse_gives_a_value_of_the_schema(chat: Server, seed: int) -> None:
    fields = {**GREEDY, "temperature": 1, "seed": seed, "messages": HELLO}
    bounded: Any = Report.model_json_schema()
    bounded["properties"]["sky"]["maxItems"] = 3
    bounded["additionalProperties"] = False
    shape = {"type": "json_schema", "json_schema": {"name": "report", "schema": bounded, "strict": True}}
    answer = chat.openai().chat.completions.create(response_format=shape, **fields)
    assert answer.choices[0].finish_reason == "stop"
    Report.model_validate_json(answer.choices[0].message.content or "")


def test_the_sdks_parse_helper_gets_a_value(chat: Server) -> None:
    class Answer(BaseModel):
        city: Literal["Wien", "Graz"]
        warm: bool

    client = chat.openai().chat.completions
    parsed = client.parse(response_format=Answer, **GREEDY).choices[0].message.parsed
    assert isinstance(parsed, Answer)
    with client.stream(response_format=Answer, **GREEDY) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed


def test_an_unsupported_schema_is_refused(chat: Server) -> None:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
    with pytest.raises(openai.BadRequestError) as raised:
        chat.openai().chat.completions.create(response_format=shape, **GREEDY)
    assert (raised.value.param, raised.value.code) == ("response_format", "invalid_json_schema")
    broken = function("broken", city={"type": "banana"})
    with pytest.raises(openai.BadRequestError) as raised:
        chat.openai().chat.completions.create(**{**TOOLS, "tools": [WEATHER, broken]})
    assert (raised.value.param, raised.value.code) == ("tools[1].function.parameters", "invalid_function_parameters")


def test_a_tool_result_is_answered(chat: Server) -> None:
    client = chat.openai().chat.completions
    first = client.create(tool_choice="required", **TOOLS)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, list(arguments)) in [("weather", ["city"]), ("clock", ["zone"])]
    messages = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = client.create(**{**TOOLS, "messages": messages, "tool_choice": "none", "max_tokens": 5})
    assert second.choices[0].message.tool_calls is None
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens > len(json.dumps(arguments))


def test_a_forced_function_is_called(chat: Server) -> None:
    for name in ("weather", "clock"):
        choice = {"type": "function", "function": {"name": name}}
        answer = chat.openai().chat.completions.create(tool_choice=choice, **TOOLS)
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == name
    allowed: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    answer = chat.openai().chat.completions.create(
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, **TOOLS
    )
    assert [call.function.name for call in answer.choices[0].message.tool_calls or []] == ["clock"]


def test_calls_are_streamed_as_the_sdk_expects(chat: Server) -> None:
    client = chat.openai().chat.completions
    expected = client.create(tool_choice="required", **TOOLS).choices[0].message.tool_calls or []
    pieces = []
    with client.stream(tool_choice="required", **TOOLS) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                pieces.append(event.arguments_delta)
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    (call,) = final.choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == (expected[0].function.name, expected[0].function.arguments)
    assert "".join(pieces) == call.function.arguments


def png(color: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), color).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_model_without_tools_goes_on_from_the_calls_of_another(chat: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    told = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    history: list[Any] = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, told]
    for messages in (history, [*history, *HELLO]):
        answer = chat.openai().chat.completions.create(model="plain", messages=messages, max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > len("noon")


def question_about(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "seeing", "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 8}


def test_the_answer_depends_on_the_image(chat: Server) -> None:
    client = chat.openai().chat.completions
    red, blue = (client.create(logprobs=True, **question_about(png(color))) for color in ("red", "blue"))
    text: Any = [{"role": "user", "content": "what is it?"}]
    text_only = client.create(**{**question_about(""), "messages": text})
    assert red.usage is not None
    assert text_only.usage is not None
    assert red.usage.prompt_tokens > text_only.usage.prompt_tokens
    assert red.choices[0].logprobs != blue.choices[0].logprobs


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://example.com/a.png", "invalid_image_url"),
        ("file:///etc/passwd", "invalid_image_url"),
        ("data:image/png;base64,AAAA", "invalid_image_file"),
    ],
)
def test_images_are_fetched_as_safely_as_references(chat: Server, url: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        chat.openai().chat.completions.create(**question_about(url))
    assert (raised.value.param, raised.value.code) == ("messages[0].content[1].image_url", code)
