"""What agents really send, against a real server and local models whose output is scripted: a call, then an answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chat_servers import chat_server
from tests.support.harness import Server
from tests.support.scripted_chat import make_scripted
from tests.unit.clients.test_recorded import RECORDED, SHELL

pytestmark = pytest.mark.nightly
ANSWER = "DONE. I have answered."
COMMAND = {name: "cmd" if name == "codex" else "command" for name in SHELL}  # an argument that the tool's schema has


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a scripted model for each client, by its name."""
    weights, home = tmp_path_factory.mktemp("weights"), tmp_path_factory.mktemp("home")
    for starter in ("starter-alpha", "starter-beta"):
        (weights / starter).mkdir()
    tables = [f'default = "{next(iter(SHELL))}"\n']
    for client, tool in SHELL.items():
        make_scripted(weights / client, tool, {COMMAND[client]: "echo hello"}, ANSWER)
        tables.append(f'[[models]]\nname = "{client}"\ncheckpoint = "{client}"\ntools = true\n')
    running = chat_server(home, weights, "\n".join(tables)).start()
    yield running
    running.stop()


@pytest.mark.parametrize("client", SHELL)
def test_the_model_calls_the_tool_and_answers_when_it_was_told(scripted: Server, client: str) -> None:
    recorded = RECORDED[client]
    path = recorded["path"].replace("starter-chat", client)
    first = {**recorded["first"], **({"model": client} if "model" in recorded["first"] else {})}
    with scripted.http() as http:
        called = http.post(path, json=first)
        answered = http.post(path, json={**first, **recorded["second"], "model": client})
    assert (called.status_code, answered.status_code) == (200, 200), (called.text, answered.text)
    written, told = joined(called.text), joined(answered.text)
    assert SHELL[client] in called.text
    assert "echo hello" in written
    assert "I need" in written  # the thoughts
    assert "<tool_call>" not in written
    assert ANSWER in told
    assert "echo hello" not in told


def joined(stream: str) -> str:
    """Return the deltas of a stream, joined: texts, thoughts and arguments each by themselves."""
    said: dict[str, str] = {}
    for line in stream.splitlines():
        if line.startswith("data: {"):
            for name, text in strings(json.loads(line.removeprefix("data: "))):
                said[name] = said.get(name, "") + text
    return "\n".join(said.values())


def strings(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the strings of a JSON value, by the names of their fields."""
    if isinstance(value, str):
        yield name, value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from strings(inner, key if isinstance(key, str) else name)
