"""What agents send: custom tools, namespaces, images for models that do not see."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import InProcess, in_process, png

PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'},
}
FILES = {"type": "namespace", "name": "files", "description": "of the project", "tools": [PATCH]}
IMAGE = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
OF_ANTHROPIC = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()},
}
OF_GOOGLE = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(png()).decode()}}
LOOK = [
    {"role": "user", "content": [{"type": "input_text", "text": "Who?"}, {"type": "input_image", "image_url": IMAGE}]}
]
LOOK_CHAT = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Who?"}, {"type": "image_url", "image_url": {"url": IMAGE}}],
    }
]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path) as running:
        yield running


async def respond(app: InProcess, **body: Any) -> Any:
    answer = await app.client.post("/v1/responses", json={"input": "Hi", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_custom_tool_is_called_and_its_output_goes_back(app: InProcess) -> None:
    app.workers.call = ("files__apply_patch", '{"input": "aaa\\n"}')
    first = await respond(app, tools=[FILES])
    (call,) = first["output"]
    assert (call["type"], call["name"], call["namespace"], call["input"]) == (
        "custom_tool_call", "apply_patch", "files", "aaa\n",
    )  # fmt: skip
    job = app.workers.jobs[-1]
    assert job.input_grammars == {"files__apply_patch": 'start: "a"+'}

    app.workers.call = None
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    await respond(app, input=[output], previous_response_id=first["id"], tools=[FILES])
    asked, told = app.workers.jobs[-1].messages[-2:]
    function = asked["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("files__apply_patch", {"input": "aaa\n"})
    assert (told["role"], told["content"]) == ("tool", "done")


async def test_a_history_with_custom_calls_can_be_sent_whole(app: InProcess) -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "aaa"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]}
    answer = await respond(app, input=[{"role": "user", "content": "Patch"}, call, output], tools=[PATCH])
    items = (await app.client.get(f"/v1/responses/{answer['id']}/input_items?order=asc")).json()["data"]
    assert [item["type"] for item in items] == ["message", "custom_tool_call", "custom_tool_call_output"]
    assert items[1]["id"].startswith("ctc_")


async def test_a_chat_completion_calls_custom_tools_too(app: InProcess) -> None:
    app.workers.call = ("apply_patch", '{"input": "aaa\\n"}')
    grammar = {"syntax": "lark", "definition": 'start: "a"+'}
    tool = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "grammar", "grammar": grammar}}}
    chat = {"messages": [{"role": "user", "content": "Patch"}], "tools": [tool]}
    custom = {"name": "apply_patch", "input": "aaa\n"}
    for headers in ({}, {"Idempotency-Key": "once"}):
        answer = (await app.client.post("/v1/chat/completions", json=chat, headers=headers)).json()
        choice = answer["choices"][0]
        assert choice["message"]["tool_calls"] == [{"id": "call_1", "type": "custom", "custom": custom}]
        assert choice["finish_reason"] == "tool_calls"
        assert app.workers.jobs[-1].input_grammars == {"apply_patch": 'start: "a"+'}
    for headers in ({}, {"Idempotency-Key": "twice"}):
        streamed = await app.client.post("/v1/chat/completions", json={**chat, "stream": True}, headers=headers)
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
        assert [call["custom"] for call in calls] == [{"name": "apply_patch", "input": ""}, {"input": "aaa\n"}]


async def test_images_are_left_out_where_the_caller_allows_it(app: InProcess) -> None:
    refused = await app.client.post("/v1/responses", json={"input": LOOK})
    assert refused.status_code == 400
    answer = await app.client.post("/v1/responses", json={"input": LOOK, "truncation": "auto"})
    assert answer.status_code == 200
    assert answer.headers["x-darkroom-ignored"] == "input[0].content[1]"
    assert app.workers.jobs[-1].messages == ({"role": "user", "content": "Who?\n[image]"},)
    chat = await app.client.post("/v1/chat/completions", json={"messages": LOOK_CHAT})
    assert chat.status_code == 400


async def test_images_are_left_out_where_the_operator_allows_it(tmp_path: Path) -> None:
    async with in_process(tmp_path, leave_out_pictures=True) as app:
        answer = await app.client.post("/v1/responses", json={"input": LOOK})
        assert answer.headers["x-darkroom-ignored"] == "input[0].content[1]"
        for headers in ({}, {"Idempotency-Key": "once"}):
            chat = await app.client.post("/v1/chat/completions", json={"messages": LOOK_CHAT}, headers=headers)
            assert chat.status_code == 200
            assert chat.headers["x-darkroom-ignored"] == "messages[0].content[1].image_url"
            assert app.workers.jobs[-1].messages[0]["content"][1] == {"type": "text", "text": "[image]"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/v1/messages",
            {
                "model": "starter-chat",
                "max_tokens": 9,
                "system": "Be kind.",
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}, OF_ANTHROPIC]}],
            },
            "messages",
        ),
        (
            "/v1beta/models/starter-chat:generateContent",
            {"contents": [{"role": "user", "parts": [{"text": "Who?"}, OF_GOOGLE]}]},
            "contents",
        ),
    ],
)
async def test_other_protocols_leave_them_out_too(
    tmp_path: Path, app: InProcess, path: str, body: dict[str, Any], field: str
) -> None:
    refused = await app.client.post(path, json=body)
    assert refused.status_code == 400
    assert f'"{field}"' in refused.text
    async with in_process(tmp_path / "allowing", leave_out_pictures=True) as allowing:
        answer = await allowing.client.post(path, json=body)
        assert (answer.status_code, answer.headers["x-darkroom-ignored"]) == (200, field)
        assert allowing.workers.jobs[-1].messages[-1]["content"][1] == {"type": "text", "text": "[image]"}


async def test_fields_of_the_hosted_service_that_change_nothing_are_named(app: InProcess) -> None:
    hosted = {"prompt_cache_key": "k", "safety_identifier": "s", "user": "u", "service_tier": "auto"}
    named = "prompt_cache_key, safety_identifier, user"
    answer = await app.client.post("/v1/responses", json={"input": "Hi", **hosted})
    assert (answer.status_code, answer.headers["x-darkroom-ignored"]) == (200, named)
    chat = await app.client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], **hosted}
    )
    assert (chat.status_code, chat.headers["x-darkroom-ignored"]) == (200, named)


async def test_options_that_the_image_tool_does_not_have_are_named(app: InProcess) -> None:
    """Options of the image routes alone, such as an adapter, change nothing here."""
    tools = [
        {"type": "function", "name": "add"},
        {"type": "image_generation", "seed": 1, "loras": {"ink": 1}, "steps": 2},
    ]
    answer = await app.client.post("/v1/responses", json={"input": "Hi", "tools": tools})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-darkroom-ignored"] == "tools[1].loras, tools[1].steps"
