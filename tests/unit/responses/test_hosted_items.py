"""Conversations that were begun elsewhere, with items of tools that this server does not run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from server.flows.responses.context import build_context
from server.flows.responses.items import PREFIXES, to_stored
from server.schemas.response_answers import InputItem
from server.schemas.response_items import HostedItem, Item
from tests.support.in_process import InProcess, in_process

CODE = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "container_id": "c",
    "status": "completed",
    "code": "print(6 * 7)",
    "outputs": [{"type": "logs", "logs": "42\n"}, {"type": "image", "url": "https://x/y.png"}],
}
FILES = {
    "type": "file_search_call",
    "id": "fs_1",
    "queries": ["rain"],
    "results": [{"filename": "a.txt", "text": "It rains.", "score": 0.5, "attributes": {}}],
}
MCP = {"type": "mcp_call", "id": "mcp_1", "server_label": "crm", "name": "find", "arguments": '{"id": 7}'}
SHELL = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}}
SHELL_OUTPUT = {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}
PATCH = {"type": "apply_patch_call", "call_id": "c2", "operation": {"type": "delete_file", "path": "a.txt"}}
PATCH_OUTPUT = {"type": "apply_patch_call_output", "call_id": "c2", "status": "failed"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
TOOLS = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "crm", "tools": [{"name": "find"}]}
REASONING = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"}
NOT_DRAWN = {"type": "image_generation_call", "id": "ig_other", "status": "failed", "result": None}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path) as running:
        yield running


def read(*items: dict[str, Any], tools: bool = True) -> list[Any]:
    stored = [to_stored(item) for item in TypeAdapter(list[Item]).validate_python(items)]
    return list(build_context(stored, None, tools=tools, vision=False).messages)


@pytest.mark.parametrize(
    ("item", "name", "arguments", "result"),
    [
        (CODE, "code_interpreter", '{"code": "print(6 * 7)"}', "42\n"),
        ({"type": "code_interpreter_call", "id": "ci"}, "code_interpreter", '{"code": ""}', "There is no result."),
        (FILES, "file_search", '{"queries": ["rain"]}', "a.txt: It rains."),
        ({**MCP, "output": "Ada"}, "crm__find", '{"id": 7}', "Ada"),
        ({**MCP, "error": {"code": 5}}, "crm__find", '{"id": 7}', 'error: {"code": 5}'),
    ],
)
def test_a_call_with_its_result_is_both_for_the_model(
    item: dict[str, Any], name: str, arguments: str, result: str
) -> None:
    asked, told = read(item)
    (call,) = asked["tool_calls"]
    assert call["function"] == {"name": name, "arguments": arguments}
    assert told == {"role": "tool", "tool_call_id": call["id"], "content": result}
    assert read(item, tools=False) == [{"role": "assistant", "content": result}]


def test_what_the_client_ran_is_a_call_and_its_result() -> None:
    shell, listed, patch, failed = read(SHELL, SHELL_OUTPUT, PATCH, PATCH_OUTPUT)
    assert shell["tool_calls"][0]["function"]["name"] == "local_shell"
    assert listed == {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}
    assert patch["tool_calls"][0]["function"]["arguments"] == '{"type": "delete_file", "path": "a.txt"}'
    assert failed["content"] == "failed"


async def test_a_history_of_another_server_goes_on_here(app: InProcess) -> None:
    history = [{"role": "user", "content": "Hi"}, REASONING, SEARCH, CODE, TOOLS, SHELL, SHELL_OUTPUT, NOT_DRAWN]
    answer = await app.client.post("/v1/responses", json={"input": [*history, {"role": "user", "content": "And?"}]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-darkroom-ignored"] == (
        "input[1].encrypted_content, input[3].container_id, input[3].outputs[1].url, input[2], input[4]"
    )
    roles = [message["role"] for message in app.workers.jobs[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "user"]
    assert app.workers.jobs[-1].messages[-2]["content"] == "error: The picture was not drawn."
    listed = (await app.client.get(f"/v1/responses/{answer.json()['id']}/input_items?order=asc")).json()["data"]
    TypeAdapter(list[InputItem]).validate_python(listed)
    assert [item["type"] for item in listed] == ["message", *(item["type"] for item in history[1:]), "message"]
    assert listed[2] == SEARCH


async def test_an_item_can_not_name_a_stored_file(app: InProcess) -> None:
    """Only the server writes `file`: else a client could read and delete the images of others."""
    parts = [{"type": "input_image", "file": "another.png", "detail": "auto"}]
    for item in (CODE, FILES, MCP, SHELL, SHELL_OUTPUT, SEARCH):
        sent = TypeAdapter[Any](Item).validate_python({**item, "content": parts, "image_url": "https://x/y.png"})
        stored = to_stored(sent)
        assert stored.files == []
        assert not {"content", "image_url"} & stored.body.keys()


async def test_an_image_that_should_be_there_is_named_and_asked_for_if_it_comes_last(app: InProcess) -> None:
    drawn = {"type": "image_generation_call", "id": "ig_other", "status": "completed", "result": None}
    spoken = {"role": "user", "content": "And?"}
    answer = await app.client.post("/v1/responses", json={"input": [drawn, spoken]})
    assert (answer.status_code, answer.headers["x-darkroom-ignored"]) == (200, "input[0]")
    refused = await app.client.post("/v1/responses", json={"input": [spoken, {**drawn, "id": "ig_gone"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[1].id")


def test_every_kind_gets_an_id() -> None:
    kinds = {kind for model in get_args(HostedItem) for kind in get_args(model.model_fields["type"].annotation)}
    assert kinds <= PREFIXES.keys()
