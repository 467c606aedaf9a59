"""Bodies of chat completions: what valid ones become, and the errors of invalid ones."""

from typing import Any

import pytest

from pipelines.protocol.chat import JsonFormat
from server.errors import BadRequest
from server.flows.chat.parse import ineffective_fields, parse_chat
from server.schemas.chat_messages import MAX_TEXT

HELLO = [{"role": "user", "content": "hello"}]
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LONG = "x" * (MAX_TEXT + 1)
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def custom(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **fields}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "messages": HELLO, **fields}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "function": {"name": "weather", "arguments": arguments}}


def schema(value: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": value, **fields}}


def test_a_minimal_body_has_openais_defaults() -> None:
    call = parse_chat(body())
    assert call.messages == ({"role": "user", "content": "hello"},)
    assert (call.sampling.temperature, call.sampling.top_p, call.n, call.stop) == (1.0, 1.0, 1, ())
    assert (call.tool_choice, call.allowed_tools, call.parallel_tool_calls) == ("auto", (), True)
    assert (call.format, call.max_tokens, call.seed) == (None, None, None)


def test_null_means_absent() -> None:
    fields = ("temperature", "stop", "tools", "tool_choice", "response_format", "logit_bias", "stream_options", "n")
    assert parse_chat(body(**dict.fromkeys(fields), functions=None, reasoning_effort=None)) == parse_chat(body())


def test_every_field_reaches_the_request() -> None:
    call = parse_chat(
        body(
            temperature=0, top_p=0.5, presence_penalty=1, frequency_penalty=-2, logit_bias={"7": -100},
            max_completion_tokens=5, stop="end", n=3, seed=-1, logprobs=True, top_logprobs=2, stream=True,
            stream_options={"include_usage": True, "include_obfuscation": True},
        )
    )  # fmt: skip
    sampling = call.sampling
    assert (sampling.temperature, sampling.top_p, sampling.logit_bias) == (0, 0.5, {7: -100})
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -2)
    assert (call.max_tokens, call.stop, call.n, call.seed) == (5, ("end",), 3, -1)
    assert (call.logprobs, call.top_logprobs, call.include_usage) == (True, 2, True)
    assert parse_chat(body(max_tokens=5, max_completion_tokens=5)).max_tokens == 5
    assert parse_chat(body(max_tokens=-1)).max_tokens is None  # LM Studio's word for no limit


def test_every_role_is_accepted_and_fields_that_sdks_add_are_removed() -> None:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    sdk_fields = {"annotations": [], "refusal": None, "audio": None, "function_call": None}
    call = parse_chat(
        body(
            messages=[
                {"role": "system", "content": "be kind"},
                {"role": "developer", "content": [{"type": "text", "text": "be short"}]},
                {"role": "user", "content": [{"type": "text", "text": "what is this?"}, PIXEL], "name": "ada"},
                {"role": "assistant", "content": None, "tool_calls": calls, **sdk_fields},
                {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
                {"role": "assistant", "content": "it rains", "tool_calls": None, **sdk_fields},
                {"role": "assistant", "content": None, "refusal": "I would rather not"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ]
        )
    )
    assert call.messages[0] == {"role": "system", "content": "be kind"}
    assert call.messages[1]["content"] == "be short"
    assert [part["type"] for part in call.messages[2]["content"]] == ["text", "image_url"]
    assert "base64" not in str(call.messages)  # images are sent to the engine as pixels
    assert call.messages[3] == {"role": "assistant", "content": None, "tool_calls": calls}
    assert call.messages[4] == {"role": "tool", "content": "rain", "tool_call_id": "call_1"}
    assert call.messages[5] == {"role": "assistant", "content": "it rains"}
    assert call.messages[6] == {"role": "assistant", "content": "I would rather not"}
    assert call.messages[7]["content"] == "no"
    assert [(image.field, image.source) for image in call.images] == [
        ("messages[2].content[1].image_url", PIXEL["image_url"]["url"])
    ]


def test_tools_and_tool_choices() -> None:
    tools = [TOOL, tool("now")]
    assert parse_chat(body(tools=tools)).tools[0] == TOOL
    assert parse_chat(body(tools=tools)).tools[1]["function"]["parameters"] == {"type": "object", "properties": {}}
    named = {"type": "function", "function": {"name": "now"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    choices = [parse_chat(body(tools=tools, tool_choice=choice)) for choice in ("none", "required", named, some)]
    assert [(call.tool_choice, call.allowed_tools) for call in choices] == [
        ("none", ()),
        ("required", ()),
        ("required", ("now",)),
        ("auto", ("now",)),
    ]
    assert parse_chat(body(tools=[], tool_choice="auto")).tools == ()


def test_response_formats() -> None:
    assert parse_chat(body(response_format={"type": "text"})).format is None
    assert parse_chat(body(response_format={"type": "json_object"})).format == JsonFormat(None)
    assert parse_chat(body(response_format=schema(CITY, strict=True))).format == JsonFormat(CITY)
    assert parse_chat(body(response_format=schema({"type": "integer"}))).format == JsonFormat({"type": "integer"})


def test_fields_without_effect_are_accepted_and_named() -> None:
    ineffective = {
        "store": True, "metadata": {"a": "b"}, "user": "ada", "service_tier": "auto", "modalities": ["text"],
        "prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "k", "novel": 1,
    }  # fmt: skip
    assert parse_chat(body(**ineffective)) == parse_chat(body())
    assert ineffective_fields(body(**ineffective)) == [
        "metadata", "prediction", "prompt_cache_key", "store", "user", "novel",
    ]  # fmt: skip
    assert ineffective_fields(body(store=False, metadata=None)) == []


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "small"}, "messages", "missing_required_parameter"),
    (body(messages=[]), "messages", "array_below_min_length"),
    (body(messages="hi"), "messages", "invalid_type"),
    (body(messages=["hi"]), "messages[0]", "invalid_type"),
    (body(messages=[{"content": "hi"}]), "messages[0].role", "missing_required_parameter"),
    (body(messages=[{"role": "robot", "content": "hi"}]), "messages[0].role", "invalid_value"),
    (body(messages=[*HELLO, {"role": "user"}]), "messages[1].content", "missing_required_parameter"),
    (body(messages=[{"role": "user", "content": 5}]), "messages[0].content", "invalid_type"),
    (body(messages=[{"role": "user", "content": None}]), "messages[0].content", "missing_required_parameter"),
    (body(messages=[{"role": "user", "content": []}]), "messages[0].content", "array_below_min_length"),
    (body(messages=user({"type": "text"})), "messages[0].content[0].text", "missing_required_parameter"),
    (body(messages=user({"type": "input_audio"})), "messages[0].content[0].type", "invalid_value"),
    (body(messages=user({"type": "file", "file": {}})), "messages[0].content[0].type", "invalid_value"),
    (body(messages=user({"type": "image_url", "image_url": 7})), "messages[0].content[0].image_url", "invalid_type"),
    (body(messages=user({"type": "image_url", "image_url": {}})), "messages[0].content[0].image_url.url",
     "missing_required_parameter"),
    (body(messages=[{"role": "system", "content": [PIXEL]}]), "messages[0].content[0].type", "invalid_value"),
    (body(messages=[{"role": "assistant", "content": None}]), "messages[0].content", "missing_required_parameter"),
    (body(messages=[{"role": "assistant", "content": "x", "audio": {"id": "a"}}]), "messages[0].audio",
     "unsupported_parameter"),
    (body(messages=[{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "x"}}]}]),
     "messages[0].tool_calls[0].function.arguments", "missing_required_parameter"),
    (body(messages=[{"role": "tool", "content": "x"}]), "messages[0].tool_call_id", "missing_required_parameter"),
    (body(messages=[{"role": "function", "name": "f", "content": "x"}]), "messages[0].role", "invalid_value"),
    (body(messages=[{"role": "user", "content": LONG}]), "messages[0].content", "string_above_max_length"),
    (body(messages=user({"type": "text", "text": LONG})), "messages[0].content[0].text", "string_above_max_length"),
    (body(messages=[{"role": "assistant", "tool_calls": [call(LONG)]}]), "messages[0].tool_calls[0].function.arguments",
     "string_above_max_length"),
    (body(tools=[tool("a", description=LONG)]), "tools[0].function.description", "string_above_max_length"),
    (body(temperature=2.5), "temperature", "decimal_above_max_value"),
    (body(temperature="hot"), "temperature", "invalid_type"),
    (body(top_p=-0.1), "top_p", "decimal_below_min_value"),
    (body(presence_penalty=3), "presence_penalty", "integer_above_max_value"),
    (body(frequency_penalty=-2.1), "frequency_penalty", "decimal_below_min_value"),
    (body(max_tokens=0), "max_tokens", "integer_below_min_value"),
    (body(max_completion_tokens="9"), "max_completion_tokens", "invalid_type"),
    (body(max_tokens=1, max_completion_tokens=2), "max_tokens", "invalid_parameter_combination"),
    (body(stop=["a", "b", "c", "d", "e"]), "stop", "array_above_max_length"),
    (body(stop=5), "stop", "invalid_type"),
    (body(stop=["a", ""]), "stop[1]", "string_below_min_length"),
    (body(n=0), "n", "integer_below_min_value"),
    (body(n=129), "n", "integer_above_max_value"),
    (body(seed=1.5), "seed", "invalid_type"),
    (body(seed=2**63), "seed", "integer_above_max_value"),
    (body(logprobs="yes"), "logprobs", "invalid_type"),
    (body(top_logprobs=3), "top_logprobs", "invalid_parameter_combination"),
    (body(logprobs=True, top_logprobs=21), "top_logprobs", "integer_above_max_value"),
    (body(logit_bias={"7": 101}), "logit_bias.7", "integer_above_max_value"),
    (body(logit_bias={"the": 1}), "logit_bias.the", "invalid_value"),
    (body(logit_bias=[1]), "logit_bias", "invalid_type"),
    (body(stream="true"), "stream", "invalid_type"),
    (body(stream_options={"include_usage": True}), "stream_options", "invalid_parameter_combination"),
    (body(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage", "invalid_type"),
    (body(stream=True, stream_options={"include_obfuscation": 1}), "stream_options.include_obfuscation",
     "invalid_type"),
    (body(tools=[{"type": "web_search"}], tool_choice="required"), "tools[0].type", "invalid_value"),
    (body(tools=[tool("two words")]), "tools[0].function.name", "invalid_value"),
    (body(tools=[tool("a"), tool("a")]), "tools[1].function.name", "invalid_value"),
    (body(tools=[tool("a", parameters={"type": "array"})]), "tools[0].function.parameters",
     "invalid_function_parameters"),
    (body(tools=[tool("a", strict=True, parameters={"type": "object", "properties": {}})]),
     "tools[0].function.parameters", "invalid_function_parameters"),
    (body(tools=[tool(f"t{i}") for i in range(257)]), "tools", "array_above_max_length"),
    (body(tool_choice="required"), "tool_choice", "invalid_value"),
    (body(tool_choice="weather", tools=[TOOL]), "tool_choice", "invalid_value"),
    (body(tool_choice=5, tools=[TOOL]), "tool_choice", "invalid_type"),
    (body(tool_choice={"type": "function", "function": {"name": "rain"}}, tools=[TOOL]), "tool_choice",
     "invalid_value"),
    (body(tool_choice={"type": "custom", "custom": {"name": "x"}}, tools=[TOOL]), "tool_choice", "invalid_value"),
    (body(tools=[TOOL, custom("weather")]), "tools[1].custom.name", "invalid_value"),
    (body(tools=[custom("two words")]), "tools[0].custom.name", "invalid_value"),
    (body(tools=[custom("a", format={"type": "grammar", "grammar": {"syntax": "gbnf", "definition": "x"}})]),
     "tools[0].custom.format.grammar.syntax", "invalid_value"),
    (body(messages=[{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "function": {}}]}]),
     "messages[0].tool_calls[0].custom", "missing_required_parameter"),
    (body(messages=[{"role": "assistant", "tool_calls": [{"id": "c", "type": "mcp"}]}]),
     "messages[0].tool_calls[0].type", "invalid_value"),
    (body(response_format="json"), "response_format", "invalid_type"),
    (body(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
    (body(response_format={"type": "json_schema"}), "response_format.json_schema", "missing_required_parameter"),
    (body(response_format=schema("string")), "response_format.json_schema.schema", "invalid_type"),
    (body(response_format=schema({"type": "string"}, strict=True)), "response_format", "invalid_json_schema"),
    (body(response_format=schema({**CITY, "required": []}, strict=True)), "response_format", "invalid_json_schema"),
    (body(modalities=["text", "audio"]), "modalities[1]", "invalid_value"),
    (body(audio={"voice": "alloy"}), "audio", "unsupported_parameter"),
    (body(functions=[{"name": "x"}]), "functions", "unsupported_parameter"),
    (body(reasoning_effort=3), "reasoning_effort", "invalid_type"),
    (body(chat_template_kwargs={"messages": []}), "chat_template_kwargs", "invalid_value"),
    (body(repetition_penalty=0), "repetition_penalty", "integer_below_min_value"),
    (body(web_search_options={}), "web_search_options", "unsupported_parameter"),
    (body(top_k=-2), "top_k", "integer_below_min_value"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "param", "code"), INVALID, ids=[f"{param} {code}" for _, param, code in INVALID])
def test_an_invalid_field_is_named(values: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_chat(values)
    assert (raised.value.param, raised.value.code) == (param, code), raised.value.message
    assert len(raised.value.message) > 20


def test_documents_are_for_the_template() -> None:
    oslo = [{"title": "Oslo", "text": "is cold"}]
    assert parse_chat(body(documents=oslo)).template_options == {"documents": oslo}
    assert parse_chat(body(documents=[])).template_options == {}


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    lark = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"+'}}
    digits = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}
    tools = [TOOL, custom("note"), custom("patch", description="Edits", format=lark), custom("sum", format=digits)]
    chosen = [{"type": "custom", "custom": {"name": "patch"}}, {"type": "function", "function": {"name": "weather"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": chosen}}
    request = parse_chat(body(tools=tools, tool_choice=allowed))
    assert (request.tool_choice, request.allowed_tools) == ("required", ("patch", "weather"))
    assert request.custom_tools == {"note", "patch", "sum"}
    assert request.input_grammars == {"patch": 'start: "a"+'}
    _, note, patch, total = (tool["function"] for tool in request.tools)
    assert note["parameters"]["required"] == ["input"]
    assert patch["description"] == 'Edits\n\nThe input is text by this grammar:\nstart: "a"+'
    assert total["parameters"]["properties"]["input"]["pattern"] == "^(?:[0-9]+)$"
    assert request.request_path("tools[2].format.definition") == "tools[2].custom.format"
    assert request.request_path("tools[0].function.parameters") == "tools[0].function.parameters"


def test_a_custom_call_in_a_history_is_a_functions_for_the_model() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "note", "input": 'Grüß "Gott"\n'}}
    result = {"role": "tool", "tool_call_id": "c", "content": "written"}
    asked, told = parse_chat(body(messages=[{"role": "assistant", "tool_calls": [call]}, result])).messages
    function = {"name": "note", "arguments": '{"input": "Grüß \\"Gott\\"\\n"}'}
    assert asked["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    assert told["content"] == "written"


def test_a_hosted_tool_that_must_be_called_is_refused_with_what_there_is() -> None:
    with pytest.raises(BadRequest, match=r"does not search the web.* Tools here: function, custom\."):
        parse_chat(body(tools=[{"type": "web_search"}], tool_choice="required"))


@pytest.mark.parametrize("kind", ["web_search_preview", "code_interpreter", "retrieval", "openrouter:web_search"])
def test_a_hosted_tool_that_the_model_merely_may_call_is_left_out_and_named(kind: str) -> None:
    request = parse_chat(body(tools=[{"type": kind}, {"type": "function", "function": {"name": "f"}}]))
    assert [tool["function"]["name"] for tool in request.tools] == ["f"]
    assert request.left_out == ("tools[0]",)


def test_nested_schemas_must_be_strict_too() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for wrap in ({"$defs": {"x": inner}}, {"properties": {"list": {"type": "array", "items": inner}}}):
        outer = {**CITY, **wrap, "required": ["city", "list"]}
        with pytest.raises(BadRequest, match="'additionalProperties' is required"):
            parse_chat(body(response_format=schema(outer, strict=True)))


@pytest.mark.parametrize(
    ("sent", "options"),
    [
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning": "high"}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning": False}, {"enable_thinking": False}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        (
            {"reasoning": {"effort": "low"}, "reasoning_effort": "none"},
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_other_names_for_thinking_are_read(sent: dict[str, Any], options: dict[str, Any]) -> None:
    assert parse_chat(body(**sent)).template_options == options
    assert ineffective_fields(body(**sent)) == []
