"""A body of generateContent as a chat completion's."""

import json
from typing import Any

import pytest

from server.dialects.gemini.request import asks_for_image, ignored_fields, json_schema, to_chat, without_unsupported
from server.dialects.gemini.schema import Blob, GenerateBody
from server.errors import BadRequest
from server.flows.chat.parse import parse_chat
from server.schemas.validation import validate

HELLO = {"role": "user", "parts": [{"text": "hello"}]}
LOOK = {"name": "look", "parameters": {"type": "OBJECT", "properties": {"where": {"type": "STRING"}}}}


def body(*contents: Any, **fields: Any) -> GenerateBody:
    values = {"contents": list(contents), **fields}
    return validate(GenerateBody, without_unsupported(values)[0], strict=True)


def test_both_spellings_are_read() -> None:
    image = {"mimeType": "image/png", "data": "AAAA"}
    for message in (
        {"parts": [{"inlineData": image}, {"text": "x"}]},
        {"parts": [{"inline_data": {"mime_type": "image/png", "data": "AAAA"}}, {"text": "x"}]},
    ):
        (user,) = to_chat(body(message), "m")["messages"]
        assert user["content"] == [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "text", "text": "x"},
        ]
    snake = body(HELLO, generation_config={"max_output_tokens": 3, "image_config": {"aspect_ratio": "1:1"}})
    camel = body(HELLO, generationConfig={"maxOutputTokens": 3, "imageConfig": {"aspectRatio": "1:1"}})
    assert snake == camel


def test_what_stands_alone_needs_no_list_around_it() -> None:
    """Google's own examples for curl have it so."""
    tools = {"function_declarations": [LOOK]}
    for alone in ({"parts": {"text": "be kind"}}, {"parts": "be kind"}, "be kind"):
        values = to_chat(body({"parts": {"text": "hello"}}, system_instruction=alone, tools=tools), "m")
        assert values["messages"][0] == {"role": "system", "content": "be kind"}
        assert "hello" in str(values["messages"][1])
        assert values["tools"][0]["function"]["name"] == "look"


def test_a_conversation_keeps_the_thoughts_of_the_model_and_its_images_where_it_draws() -> None:
    drawn = {"inlineData": {"mimeType": "image/png", "data": "BBBB"}, "thoughtSignature": "x"}
    told = body(
        HELLO,
        {"role": "model", "parts": [{"text": "hm", "thought": True}, drawn, {"text": "Here."}]},
        {"role": "user", "parts": [{"fileData": {"fileUri": "https://x/a.png"}}, {"text": "bluer"}]},
        systemInstruction={"parts": [{"text": "be kind"}]},
    )
    system, _, model, user = to_chat(told, "m", draws=True)["messages"]
    assert to_chat(told, "m")["messages"][2]["content"] == "[image]\nHere."
    assert system == {"role": "system", "content": "be kind"}
    assert (model["content"], model["reasoning_content"]) == ("Here.", "hm")
    assert model["images"][0]["image_url"]["url"] == "data:image/png;base64,BBBB"
    assert user["content"][0]["image_url"]["url"] == "https://x/a.png"


def test_calls_and_their_results_find_each_other_without_ids() -> None:
    values = to_chat(
        body(
            HELLO,
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"where": "Wien"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"result": "a star"}}}]},
            tools=[{"functionDeclarations": [LOOK]}],
            toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
            generationConfig={"temperature": 0, "topK": 4, "seed": 3, "maxOutputTokens": 9},
        ),
        "m",
    )
    _, said, result = values["messages"]
    (call,) = said["tool_calls"]
    assert result["tool_call_id"] == call["id"]
    assert json.loads(result["content"]) == {"result": "a star"}
    assert (values["temperature"], values["top_k"], values["seed"], values["max_tokens"]) == (0, 4, 3, 9)
    assert values["tool_choice"]["allowed_tools"]["mode"] == "required"
    del values["top_k"]
    assert parse_chat(values).tools[0]["function"]["parameters"]["properties"] == {"where": {"type": "string"}}


def test_a_schema_of_that_protocol_is_a_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", "nullable": True}, "list": {"type": "ARRAY", "minItems": "2"}},
        "propertyOrdering": ["type"],
        "anyOf": [{"type": "INTEGER"}],
    }
    assert json_schema(schema) == {
        "type": "object",
        "properties": {"type": {"type": ["string", "null"]}, "list": {"type": "array", "minItems": 2}},
        "anyOf": [{"type": "integer"}],
    }
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    assert to_chat(body(HELLO, generationConfig=config), "m")["response_format"]["type"] == "json_schema"


def test_a_number_with_thousands_of_digits_stays_a_text() -> None:
    assert json_schema({"minItems": "1" * 5000, "maxItems": "7"}) == {"minItems": "1" * 5000, "maxItems": 7}


def test_modalities_say_whether_an_image_is_wanted() -> None:
    assert asks_for_image(body(HELLO)) is None
    for modalities, wanted in ((["TEXT"], False), (["TEXT", "IMAGE"], True), (["Image"], True)):
        assert asks_for_image(body(HELLO, generationConfig={"responseModalities": modalities})) is wanted


def test_what_changes_nothing_is_named() -> None:
    assert ignored_fields({"contents": [], "safetySettings": [], "generationConfig": {"speechConfig": {}}}) == [
        "safetySettings",
        "generationConfig.speechConfig",
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [{"googleSearch": {}}], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "tools[0].googleSearch",
        ),
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"generationConfig": {"temperature": 9}}, "generationConfig.temperature"),
        ({"generationConfig": {"imageConfig": {"imageSize": "8K"}}}, "generationConfig.imageConfig.imageSize"),
        ({"contents": None}, "contents"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_its_name(fields: Any, param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        body(HELLO, **fields) if "contents" not in fields else validate(GenerateBody, fields, strict=True)
    assert raised.value.param == param


@pytest.mark.parametrize("data", ["+/+/Ag==", "-_-_Ag==", "-_-_Ag"])
def test_images_may_be_in_either_base64(data: str) -> None:
    assert Blob(data=data).data == "+/+/Ag=="


@pytest.mark.parametrize(
    ("config", "field", "would_work"),
    [
        ({"responseModalities": ["AUDIO"]}, "generationConfig.responseModalities[0]", "'TEXT', 'IMAGE'"),
        ({"response_modalities": ["TEXT", "Audio"]}, "generationConfig.response_modalities[1]", "'TEXT', 'IMAGE'"),
        ({"responseMimeType": "text/x.enum"}, "generationConfig.responseMimeType", "'application/json'"),
        ({"responseMimeType": "application/xml"}, "generationConfig.responseMimeType", "'application/json'"),
    ],
)
def test_an_answer_that_no_model_gives_is_refused_by_name(config: Any, field: str, would_work: str) -> None:
    with pytest.raises(BadRequest, match=would_work) as raised:
        body(HELLO, generationConfig=config)
    assert raised.value.param == field


def test_a_media_type_may_have_parameters() -> None:
    made = body(HELLO, generationConfig={"responseMimeType": "application/json; charset=utf-8"})
    assert to_chat(made, "m")["response_format"] == {"type": "json_object"}
