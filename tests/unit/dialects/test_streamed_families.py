"""What models of every family write, in every protocol: the deltas of a stream, joined, are the whole answer."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from pipelines.protocol.chat import ChoiceFinished
from tests.support.in_process import InProcess, in_process
from tests.unit.engine.test_output_families import CASES, TOOLS, Model

pytestmark = pytest.mark.asyncio(loop_scope="module")

Said = tuple[str, str, list[tuple[str, Any]], str]  # thoughts, text, calls, why it ended
FUNCTIONS = [tool["function"] for tool in TOOLS]
HELLO = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HELLO, "tools": list(TOOLS)}),
    "responses": ("/v1/responses", {"input": HELLO, "tools": [{"type": "function", **each} for each in FUNCTIONS]}),
    "messages": (
        "/v1/messages",
        {
            "model": "starter-chat",
            "max_tokens": 99,
            "messages": HELLO,
            "tools": [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS],
        },
    ),
    "gemini": (
        "/v1beta/models/starter-chat:generateContent",
        {"contents": [{"parts": [{"text": "Hi"}]}], "tools": [{"functionDeclarations": FUNCTIONS}]},
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as running:
        yield running


def events_of(text: str) -> Iterator[Any]:
    """Yield the data of a stream's events."""
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def said_by_message(message: Any, reason: str) -> Said:
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    return message["reasoning_content"] or "", message["content"] or "", calls, reason


def of_chat(whole: Any, stream: str) -> tuple[Said, Said]:
    choice = whole["choices"][0]
    parts: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = ""
    for chunk in events_of(stream):
        delta, reason = chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"] or reason
        for name in ("content", "reasoning_content"):
            parts[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(parts["tool_calls"]):
                parts["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": ""}})
            parts["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    message = {"reasoning_content": None, "tool_calls": [], **choice["message"]}
    return said_by_message(message, choice["finish_reason"]), said_by_message(parts, reason)


def of_responses(whole: Any, stream: str) -> tuple[Said, Said]:
    said: dict[str, Any] = {"reasoning": "", "message": "", "function_call": []}
    for item in whole["output"]:
        if item["type"] == "function_call":
            said["function_call"].append((item["name"], json.loads(item["arguments"])))
        else:
            said[item["type"]] += "".join(part["text"] for part in item["content"])
    thoughts, text, names, arguments, status = "", "", list[str](), dict[int, str](), ""
    for event in events_of(stream):
        match event["type"]:
            case "response.reasoning_text.delta":
                thoughts += event["delta"]
            case "response.output_text.delta":
                text += event["delta"]
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                names.append(event["item"]["name"])
            case "response.function_call_arguments.delta":
                index = event["output_index"]
                arguments[index] = arguments.get(index, "") + event["delta"]
            case "response.completed":
                status = event["response"]["status"]
    calls = [(name, json.loads(each)) for name, each in zip(names, arguments.values(), strict=True)]
    return (said["reasoning"], said["message"], said["function_call"], whole["status"]), (
        thoughts, text, calls, status,
    )  # fmt: skip


def of_messages(whole: Any, stream: str) -> tuple[Said, Said]:
    blocks, reason = list[dict[str, Any]](), ""
    for event in events_of(stream):
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                delta = event["delta"]
                name = delta["type"].removesuffix("_delta").removeprefix("input_")
                blocks[event["index"]][name] += delta.get(name) or delta.get("partial_json") or ""
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    streamed = [{**block, "input": json.loads(block["json"] or "{}")} for block in blocks]
    return _blocks(whole["content"], whole["stop_reason"]), _blocks(streamed, reason)


def _blocks(blocks: Any, reason: str) -> Said:
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return "".join(b.get("thinking", "") for b in blocks), "".join(b.get("text", "") for b in blocks), calls, reason


def of_gemini(whole: Any, stream: str) -> tuple[Said, Said]:
    chunks = list(events_of(stream))
    parts = [part for chunk in chunks for part in chunk["candidates"][0].get("content", {}).get("parts", ())]
    candidate = whole["candidates"][0]
    ends = [chunk["candidates"][0].get("finishReason", "") for chunk in chunks]
    return _parts(candidate["content"]["parts"], candidate["finishReason"]), _parts(parts, "".join(ends))


def _parts(parts: Any, reason: str) -> Said:
    calls = [(p["functionCall"]["name"], p["functionCall"]["args"]) for p in parts if "functionCall" in p]
    thoughts = "".join(p["text"] for p in parts if p.get("thought"))
    return thoughts, "".join(p.get("text", "") for p in parts if not p.get("thought")), calls, reason


READ = {"chat": of_chat, "responses": of_responses, "messages": of_messages, "gemini": of_gemini}
ENDS = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use", "gemini": "STOP"}


@pytest.mark.parametrize("protocol", BODIES)
@pytest.mark.parametrize("family", CASES)
async def test_a_stream_joined_is_the_whole_answer(app: InProcess, family: str, protocol: str) -> None:
    _, thoughts, calls, expected = CASES[family]
    deltas, finish = Model(family).deltas(thoughts + calls, tools=TOOLS)
    app.workers.script = (*deltas, ChoiceFinished(0, finish))
    path, body = BODIES[protocol]
    whole = await app.client.post(path, json=body)
    if protocol == "gemini":
        streamed = await app.client.post(path.replace("generate", "streamGenerate") + "?alt=sse", json=body)
    else:
        streamed = await app.client.post(path, json={**body, "stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
    one, other = READ[protocol](whole.json(), streamed.text)
    assert one == other
    names = ["get_weather", "forecast"][: len(expected)]
    assert (one[2], one[3]) == (list(zip(names, expected, strict=True)), ENDS[protocol])
    assert bool(one[0]) == bool(thoughts)
