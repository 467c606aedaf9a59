"""An answer that ran out of tokens says so in each protocol, streamed or not, whatever the server closed for it."""

import json
import random
import string
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chat_servers import chat_server
from tests.support.harness import Server
from tests.support.scripted_chat import make_scripted

pytestmark = pytest.mark.nightly
FILE = "".join(random.Random(5).choices(string.ascii_letters, k=900))
SCHEMA = {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]}
FORMAT = {"name": "file", "schema": SCHEMA}
TOOL = {"name": "write_file", "parameters": SCHEMA}
ROOM = 90
GUARDS = ("text", "call", "required call", "schema")
WORDS = {"chat": "length", "responses": "incomplete", "messages": "max_tokens", "gemini": "MAX_TOKENS"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    weights, home = tmp_path_factory.mktemp("weights"), tmp_path_factory.mktemp("home")
    for starter in ("starter-alpha", "starter-beta"):
        (weights / starter).mkdir()
    make_scripted(weights / "writer", "write_file", {"content": FILE}, "".join(reversed(FILE)))
    table = 'default = "writer"\n[[models]]\nname = "writer"\ncheckpoint = "writer"\ntools = true\n'
    running = chat_server(home, weights, table).start()
    yield running
    running.stop()


def body(protocol: str, guard: str) -> dict[str, Any]:
    calls, required = guard.endswith("call"), guard == "required call"
    message = {"role": "user", "content": "Write it."}
    match protocol:
        case "chat":
            made = {"messages": [message], "max_tokens": ROOM, "temperature": 0}
            made |= {"tools": [{"type": "function", "function": TOOL}]} if calls else {}
            made |= {"tool_choice": "required"} if required else {}
            return made | (
                {"response_format": {"type": "json_schema", "json_schema": FORMAT}} if guard == "schema" else {}
            )
        case "responses":
            made = {"input": [message], "max_output_tokens": ROOM, "temperature": 0}
            made |= {"tools": [{"type": "function", **TOOL}]} if calls else {}
            made |= {"tool_choice": "required"} if required else {}
            return made | ({"text": {"format": {"type": "json_schema", **FORMAT}}} if guard == "schema" else {})
        case "messages":
            made = {"model": "writer", "messages": [message], "max_tokens": ROOM, "temperature": 0}
            made |= {"tools": [{"name": "write_file", "input_schema": SCHEMA}]} if calls else {}
            made |= {"tool_choice": {"type": "any"}} if required else {}
            output = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
            return made | (output if guard == "schema" else {})
    config: dict[str, Any] = {"maxOutputTokens": ROOM, "temperature": 0}
    config |= {"responseJsonSchema": SCHEMA} if guard == "schema" else {}
    made = {"contents": [{"role": "user", "parts": [{"text": "Write it."}]}], "generationConfig": config}
    made |= (
        {"tools": [{"functionDeclarations": [{"name": "write_file", "parametersJsonSchema": SCHEMA}]}]} if calls else {}
    )
    return made | ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}} if required else {})


def path(protocol: str, *, stream: bool) -> str:
    gemini = "/v1beta/models/writer:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")
    routes = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
    return routes.get(protocol, gemini)


def said(protocol: str, value: Any) -> tuple[str, str, str]:
    """Return why a whole answer ended, its text, and the arguments of its call."""
    match protocol:
        case "chat":
            (choice,) = value["choices"]
            calls = choice["message"].get("tool_calls") or [{"function": {"arguments": ""}}]
            return choice["finish_reason"], choice["message"]["content"] or "", calls[0]["function"]["arguments"]
        case "responses":
            texts = [part["text"] for item in value["output"] if item["type"] == "message" for part in item["content"]]
            called = [item["arguments"] for item in value["output"] if item["type"] == "function_call"]
            assert (value["incomplete_details"] or {}).get("reason") in (None, "max_output_tokens")
            return value["status"], "".join(texts), "".join(called)
        case "messages":
            texts = [block["text"] for block in value["content"] if block["type"] == "text"]
            called = [json.dumps(block["input"]) for block in value["content"] if block["type"] == "tool_use"]
            return value["stop_reason"], "".join(texts), "".join(called)
    (candidate,) = value["candidates"]
    parts = candidate["content"]["parts"]
    texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
    called = [json.dumps(part["functionCall"]["args"]) for part in parts if "functionCall" in part]
    return candidate["finishReason"], "".join(texts), "".join(called)


def streamed_reason(protocol: str, stream: str) -> str:
    """Return why a streamed answer ended."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    match protocol:
        case "chat":
            return [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1]
        case "responses":
            assert events[-1]["type"] == "response.incomplete"
            return str(events[-1]["response"]["status"])
        case "messages":
            return str(next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"))
    return str(events[-1]["candidates"][0]["finishReason"])


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("protocol", WORDS)
def test_a_cut_answer_says_so(server: Server, protocol: str, guard: str) -> None:
    sent = body(protocol, guard)
    with server.http() as http:
        whole = http.post(path(protocol, stream=False), json=sent)
        stream = http.post(path(protocol, stream=True), json=sent | ({} if protocol == "gemini" else {"stream": True}))
    assert whole.status_code == stream.status_code == 200, (whole.text, stream.text)
    reason, text, arguments = said(protocol, whole.json())
    assert (reason, streamed_reason(protocol, stream.text)) == (WORDS[protocol], WORDS[protocol])
    if guard == "schema":
        assert json.loads(text)["content"]
    if guard.endswith("call"):
        content = json.loads(arguments)["content"]
        assert 0 < len(content) < len(FILE)
        assert FILE.startswith(content)
