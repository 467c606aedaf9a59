"""Answers that must follow a schema, by untrained models. What they write is random; that it is valid must not be."""

import asyncio
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pipelines.chat.engine import ChatEngine
from pipelines.protocol.chat import Admitted, ChatFinished, ChatSampling, ChatSpec, ChoiceFinished, JsonFormat
from pipelines.protocol.images import Failed
from tests.engines.chat_jobs import TOKENIZER, Job, calls, run, text
from tests.support.tiny_chat_checkpoints import make_qwen

RANDOM = ChatSampling(temperature=1.0)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOLS = (
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "forecast", "description": "ahead", "parameters": DAYS}},
)
TOOL_CALL_ID = TOKENIZER.convert_tokens_to_ids("<tool_call>")
SCHEMAS = {"get_weather": CITY, "forecast": DAYS}
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
PATCH = ({"type": "function", "function": {"name": "patch", "parameters": INPUT}}, TOOLS[0])
PATCH_GRAMMAR = """
start: "*** Begin\\n" line{1,3} "*** End \\"{}\\""
line: /[+-][a-z ]{1,8}/ "\\n"
"""


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Nested objects, arrays, enums, bounds, unions."""
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "pattern"]
    kind = rng.choice([*kinds, "object", "object", "array", "anyOf"] if depth else kinds)
    match kind:
        case "string":
            return rng.choice([{"type": "string"}, {"type": "string", "minLength": 2, "maxLength": 9}])
        case "integer":
            low = rng.randrange(-50, 50)
            bounds = {"type": "integer", "minimum": low, "maximum": low + 70}
            return rng.choice([{"type": "integer"}, bounds])
        case "number":
            return rng.choice([{"type": "number"}, {"type": "number", "exclusiveMinimum": 0.5}])
        case "boolean":
            return {"type": rng.choice(["boolean", ["boolean", "null"]])}
        case "enum":
            return {"enum": rng.sample(["red", 'a "b"', 3, None, True, "é"], 3)}
        case "const":
            return {"const": rng.choice(["yes", 0, [1, 2]])}
        case "pattern":
            return {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}
        case "array":
            return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": 1, "maxItems": 3}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
    names = rng.sample(["a", "b", "name", "x y"], rng.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": names if rng.random() < 0.6 else names[:1],
        "additionalProperties": False,
    }


@pytest.mark.nightly
async def test_two_hundred_random_schemas_are_followed(chat_engine: ChatEngine, chat_job: Job) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(200)]
    jobs = [
        chat_job("Answer", format=JsonFormat(schema), sampling=RANDOM, seed=seed, max_tokens=220)
        for seed, schema in enumerate(schemas)
    ]
    answers = await asyncio.gather(*(run(chat_engine, job) for job in jobs))
    for schema, events in zip(schemas, answers, strict=True):
        assert events[-2] == ChoiceFinished(0, "stop"), (schema, events[-1], text(events))
        Draft202012Validator(schema).validate(json.loads(text(events)))
    assert len({text(events) for events in answers}) > 100


async def test_objects_that_name_their_properties_have_no_others_and_strings_end(
    chat_engine: ChatEngine, chat_job: Job
) -> None:
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    tools = tuple({"type": "function", "function": {"name": name}} for name in ("now", "here"))
    bounded = replace(chat_job().checkpoint, max_string=16)
    for seed in range(8):
        job = chat_job(format=JsonFormat(named), sampling=RANDOM, seed=seed, max_tokens=120)
        value = json.loads(text(await run(chat_engine, replace(job, checkpoint=bounded))))
        assert value.keys() == {"name"}
        assert len(value["name"]) <= 16
        job = chat_job("Hi", tools=tools, tool_choice="required", sampling=RANDOM, seed=seed, max_tokens=120)
        assert {arguments for _, arguments in calls(await run(chat_engine, job))} == {"{}"}


async def test_json_without_a_schema_is_an_object(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job(format=JsonFormat(None), sampling=RANDOM, max_tokens=60))
    assert isinstance(json.loads(text(events)), dict)


async def test_an_answer_that_can_not_close_in_time_ends_by_length(chat_engine: ChatEngine, chat_job: Job) -> None:
    wide = {"type": "object", "properties": {"name": {"enum": ["x" * 50]}}, "required": ["name"]}
    events = await run(chat_engine, chat_job(format=JsonFormat(wide), max_tokens=20))
    assert events[-2] == ChoiceFinished(0, "length")
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.completion_tokens == 20


@pytest.mark.parametrize("model", ["qwen", "llama3"])
async def test_a_required_call_is_valid(chat_engine: ChatEngine, chat_job: Job, model: str) -> None:
    jobs = [
        chat_job("Hi", model, tools=TOOLS, tool_choice="required", sampling=RANDOM, seed=seed, max_tokens=120)
        for seed in range(8)
    ]
    for events in await asyncio.gather(*(run(chat_engine, job) for job in jobs)):
        assert events[-2] in (ChoiceFinished(0, "tool_calls"), ChoiceFinished(0, "length"))  # closed by the server
        assert text(events) == ""
        assert calls(events)
        for name, arguments in calls(events):
            Draft202012Validator(SCHEMAS[str(name)]).validate(json.loads(arguments))


async def test_a_named_function_is_the_one_that_is_called(chat_engine: ChatEngine, chat_job: Job) -> None:
    required = {"tools": TOOLS, "tool_choice": "required", "allowed_tools": ("forecast",), "sampling": RANDOM}
    events = await run(chat_engine, chat_job(**required, parallel_tool_calls=False, max_tokens=100))
    ((name, arguments),) = calls(events)
    assert name == "forecast"
    assert 1 <= json.loads(arguments)["days"] <= 14


async def test_a_call_in_the_middle_of_text_is_valid(chat_engine: ChatEngine, chat_job: Job) -> None:
    sampling = ChatSampling(temperature=1.0, logit_bias={TOOL_CALL_ID: 12.0}, presence_penalty=2.0)
    jobs = [chat_job(tools=TOOLS, max_tokens=150, sampling=sampling, seed=seed) for seed in range(8)]
    answers = await asyncio.gather(*(run(chat_engine, job) for job in jobs))
    assert any(calls(events) for events in answers)
    for events in answers:
        assert "<tool_call>" not in text(events)
        for name, arguments in calls(events):
            Draft202012Validator(SCHEMAS[str(name)]).validate(json.loads(arguments))


async def test_without_parallel_calls_there_is_one_at_most(chat_engine: ChatEngine, chat_job: Job) -> None:
    sampling = ChatSampling(temperature=1.0, logit_bias={TOOL_CALL_ID: 100.0})
    job = chat_job(tools=TOOLS, max_tokens=300, sampling=sampling, parallel_tool_calls=False)
    events = await run(chat_engine, job)
    assert len(calls(events)) == 1
    assert events[-2] == ChoiceFinished(0, "tool_calls")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [({"not": {"type": "string"}}, "not"), ({"type": "strin"}, "strin"), ({"$ref": "#/$defs/none"}, "none")],
)
async def test_a_schema_that_can_not_be_enforced_is_refused(
    chat_engine: ChatEngine, chat_job: Job, schema: dict[str, Any], reason: str
) -> None:
    events = await run(chat_engine, chat_job(format=JsonFormat(schema)))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].param) == ("invalid_value", "response_format")
    assert reason in events[-1].message
    assert not any(isinstance(event, Admitted) for event in events)
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    failed = (await run(chat_engine, chat_job(tools=(TOOLS[0], tool), strict_tools=frozenset({"f"}))))[-1]
    assert isinstance(failed, Failed)
    assert failed.param == "tools[1].function.parameters"


@pytest.mark.daily("qwen")
@pytest.mark.parametrize("model", ["qwen", "llama"])
async def test_the_input_of_a_tool_follows_its_own_grammar(chat_engine: ChatEngine, chat_job: Job, model: str) -> None:
    """No JSON: line ends and quotes are written as they are, and end up in the arguments as JSON has them."""
    for seed in range(4):
        options = {"tools": PATCH, "input_grammars": {"patch": PATCH_GRAMMAR}, "tool_choice": "required"}
        job = chat_job("Hi", model, **options, allowed_tools=("patch",), sampling=RANDOM, seed=seed, max_tokens=200)
        events = await run(chat_engine, job)
        (name, arguments), *_ = calls(events)
        written = json.loads(arguments)["input"]
        assert name == "patch"
        assert re.fullmatch(r'\*\*\* Begin\n([+-][a-z ]{1,8}\n){1,3}\*\*\* End "\{\}"', written), written


async def test_a_grammar_that_is_none_is_refused(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job("Hi", tools=PATCH, input_grammars={"patch": "start: unknown_rule"}))
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_value"
    assert failed.param == "tools[0].format.definition"
    assert "This grammar can't be enforced: " in failed.message


MCP = {
    "drop": {"type": "object", "properties": {"data": {"type": "object", "propertyNames": {"type": "string"}}}},
    "save": {"type": "object", "properties": {"kind": {"type": "string", "format": "password"}}, "required": None},
    "send": {"type": "object", "properties": {"mail": {"type": "string", "pattern": "^(?!x)[a-z]{1,5}$"}}},
    "tags": {"type": "object", "properties": {"all": {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True}}},
    "look": {"type": "object", "properties": {"at": {"$ref": "#/$defs/none"}}, "if": {}, "then": {}},
    "plain": {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False},
}


async def test_a_tool_whose_schema_can_not_be_enforced_whole_stops_no_chat(
    chat_engine: ChatEngine, chat_job: Job
) -> None:
    tools = tuple({"type": "function", "function": {"name": name, "parameters": MCP[name]}} for name in MCP)
    job = chat_job("Hello", tools=tools, sampling=RANDOM, max_tokens=4)
    admitted = next(event for event in await run(chat_engine, job) if isinstance(event, Admitted))
    assert admitted.ignored == (
        "tools[0].function.parameters.propertyNames (drop)", "tools[1].function.parameters.format (save)",
        "tools[2].function.parameters.pattern (send)", "tools[3].function.parameters.uniqueItems (tags)",
        "tools[4].function.parameters.$ref (look)", "tools[4].function.parameters.if (look)",
        "tools[4].function.parameters.then (look)",
    )  # fmt: skip
    called = replace(job, tool_choice="required", allowed_tools=("plain",), max_tokens=60)
    assert next(json.loads(arguments) for _, arguments in calls(await run(chat_engine, called))) == {"a": "x"}
    *_, failed = await run(chat_engine, replace(job, strict_tools=frozenset({"tags"})))
    assert isinstance(failed, Failed)
    assert failed.param == "tools[3].function.parameters"
    assert "uniqueItems" in failed.message


CALLS_IN_WORDS = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}I call {{ call.function.name }} with
{%- for name, value in call.function.arguments.items() %} {{ name }} as {{ value }}{% endfor %}{% endfor %}<|im_end|>
{% endfor %}{{ tools | tojson if tools }}<|im_start|>assistant
"""


async def test_a_model_that_calls_in_an_unknown_way_says_so(
    chat_engine: ChatEngine, chat_job: Job, tmp_path: Path
) -> None:
    folder = make_qwen(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(CALLS_IN_WORDS)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "response_template": None}))
    spec = ChatSpec("words", folder, tools=True)
    found = (await chat_engine.load(spec)).found
    assert found.tools
    assert any("not known" in note for note in found.notes)
    tool = {"type": "function", "function": {"name": "drop", "parameters": MCP["drop"]}}
    for choice, told in (("auto", True), ("required", False)):
        job = chat_job(checkpoint=spec, tools=(tool,), tool_choice=choice)
        admitted = next(event for event in await run(chat_engine, job) if isinstance(event, Admitted))
        assert any(name.startswith("tools (") for name in admitted.ignored) == told
