"""What a body has in the words of another protocol is read, and inner keys that nothing here knows are named."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.in_process import InProcess, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI = "/v1beta/models/starter-chat:generateContent"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": LOOK}]},
    RESPONSES: {"input": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", **LOOK}]},
    MESSAGES: {
        "model": "starter-chat",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "look", "input_schema": LOOK["parameters"]}],
    },
    GEMINI: {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "tools": [{"functionDeclarations": [LOOK]}]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as running:
        yield running


async def send(app: InProcess, path: str, **fields: Any) -> tuple[Any, list[str]]:
    """Return the job that a body becomes, and the names of what had no effect."""
    answer = await app.client.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    named = answer.headers.get("x-darkroom-ignored", "")
    return app.workers.jobs[-1], named.split(", ") if named else []


@pytest.mark.parametrize(
    ("choice", "mode", "allowed"),
    [
        ("any", "required", ()),
        ("required", "required", ()),
        ({"type": "any"}, "required", ()),
        ({"type": "auto"}, "auto", ()),
        ({"type": "none"}, "none", ()),
        ({"type": "tool", "name": "look"}, "required", ("look",)),
        ({"type": "function", "name": "look"}, "required", ("look",)),
        ({"type": "function", "function": {"name": "look"}}, "required", ("look",)),
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_a_choice_of_tools_is_read_in_every_shape(
    app: InProcess, path: str, choice: Any, mode: str, allowed: tuple[str, ...]
) -> None:
    job, named = await send(app, path, tool_choice=choice)
    assert (job.tool_choice, job.allowed_tools, named) == (mode, allowed, [])


@pytest.mark.parametrize("tool", [{"type": "function", **LOOK}, {"type": "function", "function": LOOK}])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_a_tool_is_read_in_every_shape(app: InProcess, path: str, tool: Any) -> None:
    job, named = await send(app, path, tools=[tool])
    assert [each["function"] for each in job.tools] == [LOOK]
    assert named == []


async def test_a_schema_of_the_answer_is_read_in_every_shape(app: InProcess) -> None:
    nested = {"type": "json_schema", "json_schema": {"name": "two words", "schema": SCHEMA}}
    flat = {"type": "json_schema", "schema": SCHEMA}
    for shape in (nested, flat):
        job, named = await send(app, CHAT, response_format=shape)
        assert (job.format.schema, named) == (SCHEMA, [])
        job, named = await send(app, RESPONSES, text={"format": shape})
        assert (job.format.schema, named) == (SCHEMA, [])


async def test_a_result_at_the_end_is_that_of_the_call_before(app: InProcess) -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    for result in ({"role": "function", "name": "look"}, {"role": "tool"}, {"role": "tool", "tool_call_id": ""}):
        messages = [{"role": "user", "content": "Hi"}, call, {**result, "content": "a star"}]
        job, _ = await send(app, CHAT, messages=messages)
        made, told = job.messages[1:]
        assert (told["role"], told["content"]) == ("tool", "a star")
        assert told["tool_call_id"] == made["tool_calls"][0]["id"]


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (
            CHAT,
            {
                "messages": [
                    {"role": "user", "content": "Hi", "stamp": 1},
                    {"role": "user", "content": "Hi", "stamp": 2},
                ],
                "stream_options": {"include_usage": True, "more": 1},
                "stream": True,
                "tools": [{"type": "function", "function": {**LOOK, "cache": True}}],
            },
            {"messages[0].stamp", "stream_options.more", "tools[0].function.cache"},
        ),
        (
            RESPONSES,
            {
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi", "stamp": 1}]}],
                "text": {"verbosity": None, "colour": "red"},
                "reasoning": {"summary": "auto", "budget": 3},
            },
            {"input[0].content[0].stamp", "text.colour", "reasoning.budget"},
        ),
        (
            MESSAGES,
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}],
                "system": [{"type": "text", "text": "Be brief", "cache_control": {}}],
            },
            {"messages[0].content[0].cache_control", "system[0].cache_control"},
        ),
        (
            GEMINI,
            {"contents": [{"parts": [{"text": "Hi", "stamp": 1}]}], "generationConfig": {"topP": 1, "speed": 2}},
            {"contents[0].parts[0].stamp", "generationConfig.speed"},
        ),
    ],
)
async def test_inner_keys_that_nothing_knows_are_named(
    app: InProcess, path: str, fields: dict[str, Any], named: set[str]
) -> None:
    assert set((await send(app, path, **fields))[1]) == named


async def test_keys_of_schemas_arguments_and_of_other_words_are_not_named(app: InProcess) -> None:
    schema = {**SCHEMA, "x-anything": 1}
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"more": 1}'}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "a star"},
    ]  # fmt: skip
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    assert (await send(app, CHAT, messages=history, tools=[tool], top_p=None, novel=None))[1] == []


async def test_a_hosted_tool_of_google_is_left_out_and_named(app: InProcess) -> None:
    job, named = await send(app, GEMINI, tools=[{"googleSearch": {}}, {"functionDeclarations": [LOOK]}])
    assert ([each["function"]["name"] for each in job.tools], named) == (["look"], ["tools[0].googleSearch"])


@pytest.mark.parametrize(
    ("path", "sent", "budget", "thinks"),
    [
        (CHAT, {"thinking_token_budget": 64}, 64, None),
        (CHAT, {"thinking_token_budget": -1}, None, None),
        (CHAT, {"thinking_budget": 64, "enable_thinking": True}, 64, True),
        (CHAT, {"enable_thinking": False}, None, False),
        (CHAT, {"reasoning": {"effort": "low", "max_tokens": 64}}, 64, True),
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 64}}, 64, True),
        (CHAT, {"thinking": {"type": "disabled"}}, None, False),
        (RESPONSES, {"thinking_token_budget": 64}, 64, None),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 64}}, 64, True),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, None, True),
        (MESSAGES, {"thinking": {"type": "disabled"}}, None, False),
        (GEMINI, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 64}}}, 64, True),
        (GEMINI, {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}}, None, True),
        (GEMINI, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}, None, False),
        (GEMINI, {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW"}}}, None, True),
    ],
)
async def test_a_budget_of_thoughts_is_read_in_the_words_of_each_protocol(
    app: InProcess, path: str, sent: dict[str, Any], budget: int | None, thinks: bool | None
) -> None:
    job, ignored = await send(app, path, **sent)
    assert job.thinking_budget == budget
    assert job.template_options.get("enable_thinking") is thinks
    assert not {name.partition(".")[0] for name in ignored} & sent.keys()
