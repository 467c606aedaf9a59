"""Sessions of two turns with a tool: agents from npm, and SDKs, each by a local model and by an upstream that are
scripted. All else is real."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.conformance.agents import (
    AGENTS,
    ANSWER,
    READS_PDF,
    UPSTREAM,
    Agent,
    agents_server,
    drive,
    install,
    model_of,
)
from tests.support.harness import REPOSITORY, Server

Row = tuple[str, ...]
SCRIPT = REPOSITORY / "tests" / "clients" / "tool_session.py"
PACKAGES = REPOSITORY / "tests" / "clients" / "tool_sessions.txt"
NODE = REPOSITORY / "tests" / "node"
WEATHER = replace(AGENTS[0], name="SDKs", tool="get_weather", arguments={"city": "Rome"})
SDKS = {  # name -> its package, and the script's name of it
    "OpenAI, Python, chat completions": ("openai", "openai"),
    "OpenAI, Python, responses": ("openai", "openai-responses"),
    "Anthropic's, Python, streams": ("anthropic", "anthropic"),
    "LangChain, OpenAI's protocol": ("langchain-openai", "langchain"),
    "LangChain, Anthropic's protocol": ("langchain-anthropic", "langchain-anthropic"),
    "pydantic-ai, chat completions": ("pydantic-ai-slim", "pydantic-ai"),
    "pydantic-ai, responses": ("pydantic-ai-slim", "pydantic-ai-responses"),
    "pydantic-ai, Google's protocol": ("pydantic-ai-slim", "pydantic-ai-google"),
}
# What other programs call a model with, as they name it: the script's name of the way, and the packages
N8N = ("@langchain/openai@1.4.4", "@langchain/core@1.4.0", "zod@4.6.7")
BY_NODE = {
    "LibreChat, by @librechat/agents 3.9.2": ("librechat", ("@librechat/agents@3.9.2", "zod@4.6.7")),
    "n8n, by @langchain/openai 1.4.4, chat": ("chat", N8N),
    "n8n, by @langchain/openai 1.4.4, responses": ("responses", N8N),
}
LIMIT_S = 300


def tool_sessions(work: Path) -> list[Row]:
    """Drive all of them. `work` keeps what was installed, and what each said."""
    rows, agents = [], (*AGENTS, READS_PDF, WEATHER)
    with tempfile.TemporaryDirectory() as home, agents_server(Path(home), agents) as server:
        for row in chain(_agents(server, Path(home), work), _sdks(server, work)):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
    return rows


def _agents(server: Server, home: Path, work: Path) -> Iterator[Row]:
    for agent in (*AGENTS, READS_PDF):
        try:
            program = agent.install(work / "agents")
        except (subprocess.SubprocessError, OSError) as error:
            yield (f"{agent.name} {agent.version}", "-", f"not installed: {type(error).__name__}", "-", "-")
            continue
        for model in (model_of(agent),) if agent is READS_PDF else (model_of(agent), UPSTREAM):
            yield _agent_row(agent, model, server, program, home, work)


def _agent_row(agent: Agent, model: str, server: Server, program: Path, home: Path, work: Path) -> Row:
    folder = home / f"{agent.tool}-{model}"
    session = drive(agent, model, server, program, folder)
    (work / f"{folder.name}.txt").write_text(session.output)
    shutil.rmtree(folder)
    refused = str(len(session.refused)) if session.refused else "none"
    return (
        f"{agent.name} {agent.version}", "an upstream" if model == UPSTREAM else "local",
        f"{sum(session.turns)} of 2", ("yes" if session.ran_tool else "no") if agent.calls_tools else "-", refused,
    )  # fmt: skip


def _sdks(server: Server, work: Path) -> Iterator[Row]:
    python = work / "sessions" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(PACKAGES)], check=True, timeout=900)
    for name, (package, script) in SDKS.items():
        version = f"from importlib.metadata import version; print(version({package!r}))"
        told = subprocess.run([str(python), "-c", version], capture_output=True, text=True, check=True).stdout.strip()
        for model in (model_of(WEATHER), UPSTREAM):
            yield _sdk_row(f"{name} {told}", model, server, [str(python), str(SCRIPT), script, model])
    released = json.loads((NODE / "node_modules" / "ai" / "package.json").read_text())["version"]
    for api in ("chat", "responses"):
        for model in (model_of(WEATHER), UPSTREAM):
            name = f"Vercel AI SDK, {api} {released}"
            yield _sdk_row(name, model, server, ["node", str(NODE / "tools.mjs"), model, api])
    for name, (api, packages) in BY_NODE.items():
        folder = install(work / "agents" / packages[0].rpartition("/")[2].partition("@")[0], *packages)
        for model in (model_of(WEATHER), UPSTREAM):
            yield _sdk_row(name, model, server, ["node", str(NODE / "agents.mjs"), model, api, str(folder)])


def _sdk_row(name: str, model: str, server: Server, command: list[str]) -> Row:
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), server.key)
    environment = {**os.environ, "OPENAI_BASE_URL": f"{server.base}/v1", **keys}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    place = "an upstream" if model == UPSTREAM else "local"
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it failed"])[-1][:120].replace("|", "/")
        return (name, place, said, "-", "-")
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    turns = sum(text.strip() == ANSWER for text in seen["said"])
    return (name, place, f"{turns} of 2", "yes" if seen["ran"] == 2 else "no", "none")
