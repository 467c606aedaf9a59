"""Chats through OpenAI's Node SDK, LiteLLM, LangChain and Anthropic's SDK. `make clients` installs them apart, as
LiteLLM pins other versions of Darkroom's dependencies."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_servers import LETTERS
from tests.support.harness import REPOSITORY, Server

CLIENTS = REPOSITORY / ".venv-clients"
PYTHON = CLIENTS / "bin" / "python"
SCRIPT = REPOSITORY / "tests" / "clients" / "talk.py"
NODE_CLIENTS = REPOSITORY / "tests" / "node"
HELLO: Any = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"messages": HELLO, "temperature": 0, "max_tokens": 12, **LETTERS}

needs_python_clients = pytest.mark.skipif(
    not (CLIENTS / "installed").exists(), reason="`make clients` has not installed the clients"
)
needs_node_clients = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_CLIENTS / "node_modules").exists(),
    reason="there is no node, or `make clients` could not install tests/node",
)


def run(server: Server, *command: str | Path) -> dict[str, Any]:
    """The last line of the script's output, as JSON."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), server.key)
    environment = {**server.environment, "OPENAI_BASE_URL": f"{server.base}/v1", **keys}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return results


def expected(server: Server) -> tuple[str, int]:
    """The answer and its length in tokens."""
    answer = server.openai().chat.completions.create(model="small", **GREEDY)
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.completion_tokens


@pytest.mark.nightly
@needs_python_clients
def test_litellm(chat: Server) -> None:
    results = run(chat, PYTHON, SCRIPT, "litellm", "small")
    assert (results["text"], results["tokens"]) == expected(chat)
    assert (results["streamed"], results["streamed_tokens"]) == expected(chat)
    assert (results["unknown"], results["overflow"]) == ("NotFoundError", "ContextWindowExceededError")


@needs_python_clients
def test_langchain(chat: Server) -> None:
    results = run(chat, PYTHON, SCRIPT, "langchain", "small")
    assert (results["text"], results["tokens"]) == expected(chat)
    assert (results["streamed"], results["streamed_tokens"]) == expected(chat)


@needs_python_clients
def test_anthropic(chat: Server) -> None:
    results = run(chat, PYTHON, SCRIPT, "anthropic", "small")
    answer = chat.openai().chat.completions.create(model="small", messages=HELLO, temperature=0, max_tokens=12)
    assert answer.usage is not None
    usage = [answer.usage.prompt_tokens, answer.usage.completion_tokens]
    assert results["text"] == results["streamed"] == answer.choices[0].message.content
    assert results["usage"] == results["streamed_usage"] == usage
    assert results["end"] == {"length": "max_tokens", "stop": "end_turn"}[answer.choices[0].finish_reason]
    assert [(name, list(arguments)) for name, arguments in results["calls"]] == [("look", ["city"])] * 2
    assert results["call_ends"] == ["max_tokens", "max_tokens"], "the server has closed the arguments"
    assert results["after"] > 0
    assert results["counted"] == usage[0]
    assert results["request"].startswith("req_")
    assert results["unknown"] == ["NotFoundError", "not_found_error", "model"]
    assert results["field"] == ["BadRequestError", "invalid_request_error", "temperature"]
    assert results["hosted"] == ["BadRequestError", "invalid_request_error", "tools[0].type"]
    assert results["overflow"] == ["BadRequestError", "invalid_request_error", "messages"]


@needs_node_clients
def test_node(chat: Server) -> None:
    results = run(chat, "node", NODE_CLIENTS / "talk.mjs", "small", "small")
    text, tokens = expected(chat)
    assert (results["chat"]["text"], results["chat"]["tokens"]) == (text, tokens)
    assert results["chat"]["requestId"].startswith("req_")
    assert results["stream"] == text
    assert results["helper"] == {"text": text, "same": True}
    assert results["parse"]["city"] in {"Wien", "Graz"}
    assert isinstance(results["parse"]["rain"], bool)
    assert [list(call) for call in results["tools"]["calls"]] == [["city"]]
    assert results["tools"]["roles"] == ["user", "assistant", "tool"]
    assert results["errors"] == {
        "unknown": ["NotFoundError", 404, "model_not_found", "model"],
        "field": ["BadRequestError", 400, "integer_above_max_value", "temperature"],
    }
