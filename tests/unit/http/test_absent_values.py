"""What says nothing is absent: nulls at any depth, empty values, and the neutral values of refused fields."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from server.dialects.anthropic.schema import MessagesBody
from server.dialects.gemini.schema import GenerateBody
from server.errors import BadRequest
from server.schemas import chat
from server.schemas.chat import ChatBody
from server.schemas.extra_fields import refuse_unsupported
from server.schemas.images import GenerationBody
from server.schemas.responses import ResponseBody
from server.schemas.validation import validate

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
RESPONSE: dict[str, Any] = {"input": "hi"}
MESSAGE: dict[str, Any] = {**CHAT, "model": "m", "max_tokens": 5}
GEMINI: dict[str, Any] = {"contents": [{"parts": [{"text": "hi"}]}]}
IMAGE: dict[str, Any] = {"prompt": "a boat"}
TOOL = {"type": "function", "function": {"name": "f"}}
MISSING = "missing_required_parameter"
SAY_NOTHING: list[tuple[type[BaseModel], dict[str, Any], dict[str, Any]]] = [
    (ChatBody, CHAT, {"stop": [None], "logit_bias": [], "response_format": {}, "tool_choice": ""}),
    (ChatBody, CHAT, {"logit_bias": {"5": None}, "tools": [None], "top_p": "", "modalities": [None]}),
    (ChatBody, CHAT, {"user": 123, "metadata": {"a": {"b": None}}, "store": "false", "service_tier": ["x"]}),
    (ChatBody, CHAT, {"stream_options": {"include_usage": None}, "image_config": {"image_size": ""}}),
    (ResponseBody, RESPONSE, {"metadata": {"a": None}, "include": [None], "reasoning": {"effort": None}}),
    (ResponseBody, RESPONSE, {"text": {"format": {}}, "tool_choice": {}, "truncation": ""}),
    (MessagesBody, MESSAGE, {"tool_choice": {}, "metadata": "x", "stop_sequences": [None]}),
    (MessagesBody, MESSAGE, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": None}}),
    (GenerateBody, GEMINI, {"generationConfig": {"stopSequences": [None], "imageConfig": {"imageSize": ""}}}),
    (GenerateBody, GEMINI, {"tools": None, "tool_config": {"function_calling_config": {"mode": ""}}}),
    (GenerationBody, IMAGE, {"n": "", "quality": "", "image": [None], "mask": "", "seed": "", "loras": {"a": None}}),
    (GenerationBody, IMAGE, {"scheduler": "", "webhook": "", "long_prompt": "", "batch": ""}),
    (GenerationBody, IMAGE, {"controls": {"depth": None}, "image": "", "user": {"id": 5}, "output_format": ""}),
]


@pytest.mark.parametrize(("model", "body", "fields"), SAY_NOTHING)
def test_what_says_nothing_is_absent(model: type[BaseModel], body: dict[str, Any], fields: dict[str, Any]) -> None:
    kept = {"user", "metadata", "store", "service_tier"}
    sent = {**body, **fields}
    read = validate(model, sent, strict=True).model_dump(exclude=kept, exclude_none=True)
    plain = validate(model, body, strict=True).model_dump(exclude=kept, exclude_none=True)
    inner = {"stream_options", "image_config", "reasoning", "generation_config", "tool_config", "tool_choice"}
    assert {name: value for name, value in read.items() if name not in inner} == {
        name: value for name, value in plain.items() if name not in inner
    }
    assert sent == {**body, **fields}, "the caller's own values are changed"


@pytest.mark.parametrize(
    ("model", "body", "param", "code"),
    [
        (ChatBody, {"messages": []}, "messages", "array_below_min_length"),
        (ChatBody, {"messages": [{"role": "user", "content": []}]}, "messages[0].content", "array_below_min_length"),
        (ChatBody, {"messages": [{"role": "user", "content": None}]}, "messages[0].content", MISSING),
        (ChatBody, {**CHAT, "tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", None),
        (ChatBody, {**CHAT, "tools": [{}]}, "tools[0].type", MISSING),
        (ChatBody, {**CHAT, "stop": ["a", ""]}, "stop[1]", "string_below_min_length"),
        (GenerationBody, {"prompt": ""}, "prompt", "string_below_min_length"),
        (GenerationBody, {**IMAGE, "n": "", "quality": "best"}, "quality", "invalid_value"),
    ],
)  # fmt: skip
def test_what_is_needed_may_not_be_empty(
    model: type[BaseModel], body: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(BadRequest) as raised:
        validate(model, body, strict=True)
    assert raised.value.param == param
    assert code is None or raised.value.code == code


class Operators(BaseModel):
    """A body of operators: nothing of it is guessed."""

    model_config = ConfigDict(extra="forbid")
    limit: int | None = None


WHOLE: list[tuple[type[BaseModel], dict[str, Any], dict[str, Any]]] = [
    (GenerationBody, IMAGE, {"n": 2.0, "steps": 20.0, "seed": 3.0, "partial_images": 0.0, "output_compression": 100.0}),
    (ChatBody, CHAT, {"max_tokens": 100.0, "n": 1.0, "seed": -5.0, "stream_options": None}),
    (ResponseBody, RESPONSE, {"max_output_tokens": 64.0, "tools": [{"type": "image_generation", "seed": 4.0}]}),
]


@pytest.mark.parametrize(("model", "body", "fields"), WHOLE)
def test_a_whole_decimal_is_an_integer(model: type[BaseModel], body: dict[str, Any], fields: dict[str, Any]) -> None:
    integers = json.loads(json.dumps(fields), parse_float=lambda text: int(float(text)))
    assert validate(model, {**body, **fields}, strict=True) == validate(model, {**body, **integers}, strict=True)


@pytest.mark.parametrize("fields", [{"n": 1.5}, {"seed": "3"}, {"steps": True}, {"n": 0.0}, {"steps": 1e300}])
def test_other_numbers_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        validate(GenerationBody, {**IMAGE, **fields}, strict=True)
    assert refused.value.param in fields


def test_an_operator_is_told_of_an_empty_value() -> None:
    assert validate(Operators, {"limit": None}, strict=True).limit is None
    with pytest.raises(BadRequest, match="expected an integer"):
        validate(Operators, {"limit": ""}, strict=True)


def test_nulls_inside_a_schema_or_an_argument_stay() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, "x"], "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = validate(ChatBody, {**CHAT, "tools": [tool], "stop": [None]}, strict=True)
    assert body.tools[0].model_dump()["function"]["parameters"] == schema


NEUTRAL: list[dict[str, Any]] = [
    {"best_of": 1},
    {"functions": []},
    {"function_call": "auto"},
    {"grammar": ""},
    {"continue_final_message": False},
    {"audio": {}},
    {"structured_outputs": {}},
]
ASKING: list[dict[str, Any]] = [
    {"best_of": 2},
    {"functions": [TOOL]},
    {"function_call": {"name": "f"}},
    {"web_search_options": {}},
    {"guided_json": {}},
]


@pytest.mark.parametrize("fields", NEUTRAL)
def test_a_refused_field_may_ask_for_nothing(fields: dict[str, Any]) -> None:
    refuse_unsupported(fields, chat.UNSUPPORTED)


@pytest.mark.parametrize("fields", ASKING)
def test_a_refused_field_that_asks_for_something_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="is not supported by this server"):
        refuse_unsupported(fields, chat.UNSUPPORTED)


def test_a_responses_labels_are_kept_as_texts() -> None:
    body = validate(
        ResponseBody, {**RESPONSE, "user": 7, "metadata": {"a": 1, "b": True}, "store": "False"}, strict=True
    )
    assert (body.user, body.metadata, body.store) == ("7", {"a": "1", "b": "true"}, False)
