"""Command-line agents of others, from npm: sessions of two turns with a tool, by a local model and by an upstream.

The output of both is scripted. All else is real: the agent runs the tool and sends its whole history again.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.harness import REPOSITORY, Server
from tests.support.recording_proxy import Exchange, recording_proxy
from tests.support.scripted_chat import make_scripted
from tests.support.scripted_upstream import scripted_upstream

LIMIT_S = 300
MADE = "made-by-tool.txt"
ANSWER = "DONE. I have answered."
UPSTREAM = "large"
SHELL = f"echo hello-from-tool >> {MADE}"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent runs: its folders, the server's address, and the model that it uses."""

    home: Path
    work: Path
    program: Path
    base: str
    key: str
    model: str


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: its npm package, the tool that it has for commands, and how it is set up and called."""

    name: str
    package: str
    version: str
    tool: str
    arguments: Mapping[str, Any]
    set_up: Callable[[Place], Mapping[str, str]]  # writes its settings, returns its environment
    command: Callable[[Place, str, bool], list[str]]  # of a prompt, which may go on with the last session


def _claude_setup(place: Place) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.base,
        "ANTHROPIC_API_KEY": place.key,
        "ANTHROPIC_MODEL": place.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": place.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def _claude(place: Place, prompt: str, goes_on: bool) -> list[str]:
    more = ["-c"] if goes_on else []
    return [str(place.program / "claude"), *more, "--dangerously-skip-permissions", "-p", prompt]


def _codex_setup(place: Place) -> Mapping[str, str]:
    (place.home / ".codex").mkdir(exist_ok=True)
    (place.home / ".codex" / "config.toml").write_text(
        f'model = "{place.model}"\nmodel_provider = "darkroom"\n\n[model_providers.darkroom]\nname = "Darkroom"\n'
        f'base_url = "{place.base}/v1"\nenv_key = "DARKROOM_KEY"\nwire_api = "responses"\n'
    )
    return {"DARKROOM_KEY": place.key}


def _codex(place: Place, prompt: str, goes_on: bool) -> list[str]:
    options = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
    more = ["resume", "--last"] if goes_on else []
    return [str(place.program / "codex"), "exec", *more, *options, prompt]


def _gemini_setup(place: Place) -> Mapping[str, str]:
    (place.home / ".gemini").mkdir(exist_ok=True)
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
    (place.home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return {
        "GOOGLE_GEMINI_BASE_URL": place.base,
        "GEMINI_API_KEY": place.key,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "NO_BROWSER": "1",
    }


def _gemini(place: Place, prompt: str, goes_on: bool) -> list[str]:
    more = ["--resume", "latest"] if goes_on else []
    return [str(place.program / "gemini"), "--model", place.model, "--yolo", *more, "-p", prompt]


def _opencode_setup(place: Place) -> Mapping[str, str]:
    folder = place.home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Darkroom",
        "options": {"baseURL": f"{place.base}/v1", "apiKey": "{env:DARKROOM_KEY}"},
        "models": {place.model: {}},
    }
    config = {"provider": {"darkroom": provider}, "model": f"darkroom/{place.model}", "permission": "allow"}
    (folder / "opencode.json").write_text(json.dumps(config))
    return {"DARKROOM_KEY": place.key, "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _opencode(place: Place, prompt: str, goes_on: bool) -> list[str]:
    return [str(place.program / "opencode"), "run", *(["-c"] if goes_on else []), prompt]


def _qwen_setup(place: Place) -> Mapping[str, str]:
    (place.home / ".qwen").mkdir(exist_ok=True)
    settings = {"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False}}
    (place.home / ".qwen" / "settings.json").write_text(json.dumps(settings))
    return {"OPENAI_BASE_URL": f"{place.base}/v1", "OPENAI_API_KEY": place.key, "OPENAI_MODEL": place.model}


def _qwen(place: Place, prompt: str, goes_on: bool) -> list[str]:
    return [str(place.program / "qwen"), "--yolo", *(["--continue"] if goes_on else []), "-p", prompt]


def _continue_setup(place: Place) -> Mapping[str, str]:
    model = {"name": "Darkroom", "provider": "openai", "model": place.model, "apiBase": f"{place.base}/v1"}
    model |= {"apiKey": place.key, "roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"]}
    config = {"name": "Local", "version": "1.0.0", "schema": "v1", "models": [model]}
    (place.home / ".continue").mkdir(exist_ok=True)
    (place.home / ".continue" / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    return {"CONTINUE_CLI_ENABLE_TELEMETRY": "0"}


def _continue(place: Place, prompt: str, goes_on: bool) -> list[str]:
    config = str(place.home / ".continue" / "config.yaml")
    return [str(place.program / "cn"), "--config", config, "--auto", *(["--resume"] if goes_on else []), "-p", prompt]


AGENTS = (
    Agent("Claude Code", "@anthropic-ai/claude-code", "2.1.332", "Bash", {"command": SHELL, "description": "Say hello"},
          _claude_setup, _claude),
    Agent("Codex CLI", "@openai/codex", "0.171.0", "exec_command", {"cmd": SHELL}, _codex_setup, _codex),
    Agent("Gemini CLI", "@google/gemini-cli", "0.61.0", "run_shell_command", {"command": SHELL}, _gemini_setup,
          _gemini),
    Agent("Qwen Code", "@qwen-code/qwen-code", "0.24.4", "run_shell_command",
          {"command": SHELL, "is_background": False}, _qwen_setup, _qwen),
    Agent("opencode", "opencode-ai", "1.18.33", "bash", {"command": SHELL},
          _opencode_setup, _opencode),
    Agent("Continue", "@continuedev/cli", "1.5.47", "Bash", {"command": SHELL}, _continue_setup, _continue),
)  # fmt: skip
READS_PDF = replace(AGENTS[0], name="Claude Code, after a PDF", tool="Read", arguments={"file_path": "a.pdf"})


@dataclass(frozen=True, slots=True)
class Session:
    """What one session of two turns was like: which turns ended with the answer, and what passed."""

    agent: Agent
    model: str
    turns: tuple[bool, ...]
    ran_tool: bool
    exchanges: tuple[Exchange, ...]
    run_s: float
    output: str

    @property
    def refused(self) -> list[str]:
        """Return the requests that were not answered."""
        return [f"{each.path} {each.status} {each.answer[:200]}" for each in self.exchanges if each.status != 200]


def model_of(agent: Agent) -> str:
    """Return the name of the local model that is scripted for an agent."""
    return "-".join(["scripted", *re.findall(r"[a-z]+", agent.name.lower())])


@contextmanager
def agents_server(home: Path, agents: tuple[Agent, ...], context: int | None = None) -> Iterator[Server]:
    """Run a server with a scripted model for each agent, and `large`, which another server answers. `context` is what
    each model reads at most."""
    weights, configs = home / "weights", home / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", configs)
    tables = []
    for agent in agents:
        make_scripted(weights / model_of(agent), agent.tool, agent.arguments, ANSWER)
        bound = f"context = {context}\n" if context else ""
        tables.append(
            f'[[models]]\nname = "{model_of(agent)}"\ncheckpoint = "{model_of(agent)}"\ntools = true\n{bound}'
        )
    for starter in ("starter-alpha", "starter-beta"):
        (weights / starter).mkdir(parents=True)
    calls = {agent.tool: dict(agent.arguments) for agent in agents if agent is not READS_PDF}
    with scripted_upstream(calls, ANSWER, context) as (address, _):
        tables.append(f'[[models]]\nname = "{UPSTREAM}"\nupstream = "{address}"\n')
        tables.append(f'[aliases]\n"gemini-*" = "{UPSTREAM}"\n')  # by which Gemini CLI shortens a session
        (configs / "chat.toml").write_text("\n".join([f'default = "{model_of(agents[0])}"\n', *tables]))
        server = Server(home / "server", weights, configs, {"preload": "false"}).start()
        try:
            yield server
        finally:
            server.stop()


def install(folder: Path, *packages: str) -> Path:
    """Install packages from npm, unless they are there. Returns the folder. Raises CalledProcessError."""
    if not (folder / "node_modules" / ".bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", *packages]
        subprocess.run(command, check=True, timeout=600)
    return folder


def drive(agent: Agent, model: str, server: Server, program: Path, folder: Path) -> Session:
    """Run a session of two turns."""
    began, turns, told = time.monotonic(), [], []
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    (work / "a.pdf").write_bytes(PDF)
    with recording_proxy(server.port) as (base, seen):
        place = Place(home, work, program, base, server.key, model)
        own = environment_of(agent, place)
        for goes_on in (False, True):
            command = agent.command(place, "Say hello by the tool", goes_on)
            ended = run_agent(command, own, work)
            turns.append(ended.returncode == 0 and ANSWER in ended.stdout)
            told.append(ended.stdout + ended.stderr)
    made = work / MADE
    runs = made.read_text().count("hello-from-tool") if made.exists() else 0
    ran = runs == len(turns) or (agent is READS_PDF and _was_read(seen))
    return Session(agent, model, tuple(turns), ran, tuple(seen), time.monotonic() - began, "\n".join(told))


def environment_of(agent: Agent, place: Place) -> Mapping[str, str]:
    """Write the agent's settings, and return the variables that it is run with."""
    return {"PATH": os.environ["PATH"], "HOME": str(place.home), "NO_COLOR": "1", **agent.set_up(place)}


def run_agent(command: list[str], environment: Mapping[str, str], work: Path) -> "subprocess.CompletedProcess[str]":
    """Run an agent to its end, or to the time limit."""
    try:
        return subprocess.run(
            command,
            env=environment,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(command, -1, said, f"It did not end within {LIMIT_S} s.")


def _was_read(seen: list[Exchange]) -> bool:
    return any("tool_result" in json.dumps(each.body) for each in seen)


def _pdf() -> bytes:
    """Return a document of one page."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>",
    ]
    text, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(text))
        text += b"%d 0 obj%sendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 4\n0000000000 65535 f \n" + table
    return text + head + b"trailer<</Size 4/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % len(text)


PDF = _pdf()
