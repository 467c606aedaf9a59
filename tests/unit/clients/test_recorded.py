"""What agents really send: their first request, and the one after two rounds with a tool.

`make conformance` runs the agents themselves. These are their bodies (Claude Code 2.1, Codex CLI 0.169, Gemini CLI 0.61
and opencode 1.18, with their defaults), with long texts cut.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.in_process import InProcess, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECORDED = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "recorded").glob("*.json")}
SHELL = {"claude-code": "Bash", "codex": "exec_command", "gemini-cli": "run_shell_command", "opencode": "bash"}
IGNORED = {  # by the first request: what is not named here has its effect
    "claude-code": {"messages[0].content[1].cache_control", "system[1].cache_control"},
    "codex": {"client_metadata", "prompt_cache_key", "tools[8]"},
    "gemini-cli": {"generationConfig.thinkingConfig.includeThoughts"},
    "opencode": set(),
}
ASKED = "Say hello by the tool"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as running:
        yield running


async def send(app: InProcess, client: str, round: str) -> tuple[Any, set[str], str]:
    """Return the job that a recorded body becomes, the names of what has no effect, and the answer."""
    recorded = RECORDED[client]
    body = {**recorded["first"], **(recorded["second"] if round == "second" else {})}
    app.workers.call = (SHELL[client], '{"command": "ls"}')
    answer = await app.client.post(recorded["path"], json=body)
    assert answer.status_code == 200, answer.text
    ignored = answer.headers.get("x-darkroom-ignored", "")
    return app.workers.jobs[-1], set(ignored.split(", ")) - {""}, answer.text


def texts(messages: Any, role: str) -> str:
    return " ".join(str(message["content"]) for message in messages if message["role"] == role)


async def test_every_client_was_recorded() -> None:
    assert RECORDED.keys() == SHELL.keys() == IGNORED.keys()


@pytest.mark.parametrize("client", SHELL)
async def test_the_first_request_is_answered_with_a_call(app: InProcess, client: str) -> None:
    job, ignored, answer = await send(app, client, "first")
    assert ignored == IGNORED[client]
    assert ASKED in texts(job.messages, "user")
    assert SHELL[client] in [tool["function"]["name"] for tool in job.tools]
    assert SHELL[client] in answer
    assert "web_search" not in [tool["function"]["name"] for tool in job.tools]


@pytest.mark.parametrize("client", SHELL)
async def test_the_history_of_two_rounds_is_read_whole(app: InProcess, client: str) -> None:
    job, _, _ = await send(app, client, "second")
    called = [call for message in job.messages for call in message.get("tool_calls", ())]
    told = [message["tool_call_id"] for message in job.messages if message["role"] == "tool"]
    assert [call["function"]["name"] for call in called] == [SHELL[client]] * 2
    assert [call["id"] for call in called] == told
    assert all("hello-from-tool" in call["function"]["arguments"] for call in called)
    assert "DONE. I have answered." in texts(job.messages, "assistant")
    assert texts(job.messages, "user").count(ASKED) == 2
    thoughts = [message.get("reasoning_content") for message in job.messages if message.get("tool_calls")]
    assert thoughts == [None if client == "gemini-cli" else "I think about it."] * 2
