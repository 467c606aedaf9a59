"""Chats through OpenAI's Node SDK, LiteLLM and LangChain. `make clients` installs them apart, as LiteLLM pins other
versions of Darkroom's dependencies."""

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
    not (CLIENTS / "installed").exists(), reason="`make clients` has not installed LiteLLM and LangChain"
)
needs_node_clients = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_CLIENTS / "node_modules").exists(),
    reason="there is no node, or `make clients` could not install tests/node",
)


def run(server: Server, *command: str | Path) -> dict[str, Any]:
    """The last line of the script's output, as JSON."""
    environment = {**server.environment, "OPENAI_BASE_URL": f"{server.base}/v1", "OPENAI_API_KEY": server.key}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return results


def expected(server: Server) -> tuple[str, int]:
    """The answer and its length in tokens."""
    answer = server.openai().chat.completions.create(model="small", **GREEDY)
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.completion_tokens


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
