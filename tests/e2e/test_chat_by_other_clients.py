"""Chats through OpenAI's Node SDK, LiteLLM and LangChain. They are installed apart (`make clients`): LiteLLM pins what
Darkroom has in other versions, and Node is not ours."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import REPOSITORY, Server

CLIENTS = REPOSITORY / ".venv-clients"
PYTHON = CLIENTS / "bin" / "python"
NODE_CLIENTS = REPOSITORY / "tests" / "node"
GREEDY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12}

needs_python_clients = pytest.mark.skipif(
    not (CLIENTS / "installed").exists(), reason="`make clients` has not installed LiteLLM and LangChain"
)
needs_node_clients = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_CLIENTS / "node_modules").exists(),
    reason="there is no node, or `make clients` could not install tests/node",
)


def run(server: Server, *command: str | Path) -> dict[str, Any]:
    """What the script prints last, as JSON."""
    environment = {**server.environment, "OPENAI_BASE_URL": f"{server.base}/v1", "OPENAI_API_KEY": server.key}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def expected(server: Server) -> tuple[str, int]:
    answer = server.openai().chat.completions.create(model="small", **GREEDY)
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.completion_tokens


@needs_python_clients
def test_litellm(chat: Server) -> None:
    told = run(chat, PYTHON, REPOSITORY / "tests" / "clients" / "talk.py", "litellm", "small")
    assert (told["text"], told["tokens"]) == (told["streamed"], told["streamed_tokens"]) == expected(chat)
    assert (told["unknown"], told["overflow"]) == ("NotFoundError", "ContextWindowExceededError")


@needs_python_clients
def test_langchain(chat: Server) -> None:
    told = run(chat, PYTHON, REPOSITORY / "tests" / "clients" / "talk.py", "langchain", "small")
    assert (told["text"], told["tokens"]) == (told["streamed"], told["streamed_tokens"]) == expected(chat)


@needs_node_clients
def test_node(chat: Server) -> None:
    told = run(chat, "node", NODE_CLIENTS / "talk.mjs", "small", "small")
    text, tokens = expected(chat)
    assert (told["chat"]["text"], told["chat"]["tokens"]) == (text, tokens)
    assert told["chat"]["requestId"].startswith("req_")
    assert told["stream"] == text
    assert told["helper"] == {"text": text, "same": True}
    assert told["parse"]["city"] in {"Wien", "Graz"}
    assert isinstance(told["parse"]["rain"], bool)
    assert [list(call) for call in told["tools"]["called"]] == [["city"]]
    assert told["tools"]["roles"] == ["user", "assistant", "tool"]
    assert told["wrong"] == {
        "unknown": ["NotFoundError", 404, "model_not_found", "model"],
        "field": ["BadRequestError", 400, "integer_above_max_value", "temperature"],
    }
