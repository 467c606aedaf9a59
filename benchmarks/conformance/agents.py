"""Command-line agents of others, from npm and PyPI: sessions of two turns with a tool, by a local model and by an
upstream.

The output of both is scripted. All else is real: the agent runs the tool and sends its whole history again.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from server.cli.clients import SHELL as SHELL_STEP
from tests.support.harness import REPOSITORY, Server
from tests.support.recording_proxy import Exchange, recording_proxy
from tests.support.scripted_chat import CONTEXT, make_scripted
from tests.support.scripted_upstream import scripted_upstream

LIMIT_S = 300
MADE = "made-by-tool.txt"
ANSWER = "DONE. I have answered."
UPSTREAM = "large"
SHELL = f"echo hello-from-tool >> {MADE}"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: its packages, the tool that it has for commands, and how it is called.

    `darkroom clients` says how it is set up. What is added here lets it run without a person and without internet.
    """

    name: str
    client: str  # as `darkroom clients` knows it
    package: str
    version: str
    tool: str
    arguments: Mapping[str, Any]
    options: tuple[str, ...]  # before the prompt; LAST is where it is told to go on with the last session
    goes_on: tuple[str, ...] = ()  # which is told so; without it, each prompt begins a session
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # other packages
    is_python: bool = False  # a package of PyPI, not of npm

    @property
    def calls_tools(self) -> bool:
        """Return whether it offers tools to the model."""
        return self.tool != NO_TOOL

    def install(self, folder: Path) -> Path:
        """Install it, unless it is there. Returns the folder of its program. Raises CalledProcessError."""
        place = folder / self.package.rpartition("/")[2]
        if not self.is_python:
            return install(place, f"{self.package}@{self.version}", *self.needs) / "node_modules" / ".bin"
        if not (place / "bin" / "pip").exists():
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", f"{self.package}=={self.version}"]
        subprocess.run(pip, check=True, timeout=900)
        return place / "bin"


LAST = "<last session>"
NO_TOOL = "none"
NODE = "node@24.21.0"  # for agents that want a newer one than distributions have
AGENTS = (
    Agent("Claude Code", "claude-code", "@anthropic-ai/claude-code", "2.1.332", "Bash",
          {"command": SHELL, "description": "Say hello"}, (LAST, "--dangerously-skip-permissions", "-p"), ("-c",),
          {"IS_SANDBOX": "1"}),
    Agent("Codex CLI", "codex", "@openai/codex", "0.171.0", "exec_command", {"cmd": SHELL},
          ("exec", LAST, "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"), ("resume", "--last")),
    Agent("Gemini CLI", "gemini-cli", "@google/gemini-cli", "0.61.0", "run_shell_command", {"command": SHELL},
          ("--yolo", LAST, "-p"), ("--resume", "latest"), {"GEMINI_CLI_TRUST_WORKSPACE": "true", "NO_BROWSER": "1"}),
    Agent("Qwen Code", "qwen-code", "@qwen-code/qwen-code", "0.24.4", "run_shell_command",
          {"command": SHELL, "is_background": False}, ("--yolo", LAST, "-p"), ("--continue",), needs=(NODE,)),
    Agent("opencode", "opencode", "opencode-ai", "1.18.33", "bash", {"command": SHELL}, ("run", LAST), ("-c",),
          {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}),
    Agent("pi", "pi", "@earendil-works/pi-coding-agent", "1.6.0", "bash", {"command": SHELL}, (LAST, "-p"), ("-c",),
          {"PI_OFFLINE": "1"}, needs=(NODE,)),
    Agent("Cline", "cline", "cline", "3.0.65", "run_commands", {"commands": [SHELL]}, ()),
    Agent("Continue", "continue", "@continuedev/cli", "1.5.47", "Bash", {"command": SHELL}, ("--auto", LAST, "-p"),
          ("--resume",), {"CONTINUE_CLI_ENABLE_TELEMETRY": "0"}),
    Agent("Copilot CLI", "copilot", "@github/copilot", "1.0.102", "bash",
          {"command": SHELL, "description": "Say hello"}, ("--allow-all-tools", LAST, "-p"), ("--continue",)),
    Agent("aider", "aider", "aider-chat", "0.86.2", NO_TOOL, {},
          ("--yes-always", "--no-git", "--no-check-update", "--analytics-disable", LAST, "--message"),
          ("--restore-chat-history",), is_python=True),
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
def agents_server(home: Path, agents: tuple[Agent, ...], context: int = CONTEXT) -> Iterator[Server]:
    """Run a server with a scripted model for each agent, and `large`, which another server answers. `context` is what
    each model reads at most."""
    weights, configs = home / "weights", home / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", configs)
    tables = []
    for agent in agents:
        make_scripted(weights / model_of(agent), agent.tool, agent.arguments, ANSWER)
        table = f'name = "{model_of(agent)}"\ncheckpoint = "{model_of(agent)}"\ntools = true\ncontext = {context}\n'
        tables.append(f"[[models]]\n{table}")
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


@dataclass(frozen=True, slots=True)
class ReadyAgent:
    """An agent in a home of its own, set up as `darkroom clients` says."""

    agent: Agent
    command: tuple[str, ...]
    environment: Mapping[str, str]
    work: Path

    def run(self, prompt: str, *, goes_on: bool) -> "subprocess.CompletedProcess[str]":
        """Run it to its end, or to the time limit, in a new session or in the last."""
        more = self.agent.goes_on if goes_on else ()
        words = [word for option in self.agent.options for word in (more if option == LAST else (option,))]
        command = [*self.command, *words, prompt]
        try:
            return subprocess.run(
                command,
                env=self.environment,
                cwd=self.work,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            return subprocess.CompletedProcess(command, -1, said, f"It did not end within {LIMIT_S} s.")


def set_up(
    agent: Agent, program: Path, model: str, server: Server, base: str, folder: Path, context: int = CONTEXT
) -> ReadyAgent:
    """Do what `darkroom clients` says of a model with this context, for the server at this address: write the files
    into a home in `folder`."""
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    reached = replace(server, settings={**server.settings, "public_urls": base})
    asked = ("--model", model, "--key", server.key, "--context", str(context))
    printed = reached.darkroom("clients", agent.client, *asked)
    assert printed.returncode == 0, printed.stderr
    variables, command = dict[str, str](), list[str]()
    for step in re.split(r"^# ", printed.stdout, flags=re.MULTILINE)[1:]:
        place, _, text = step.partition("\n")
        if place != SHELL_STEP:
            file = home / place.removeprefix("~/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            continue
        for words in map(shlex.split, text.strip().splitlines()):
            if words[0] == "export":
                variables |= dict(word.split("=", 1) for word in words[1:])
            else:
                command = [word.replace("~", str(home)) for word in words]
    own = {"PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "HOME": str(home), "NO_COLOR": "1"}
    called = (str(program / command[0]), *command[1:])
    return ReadyAgent(agent, called, {**own, **agent.environment, **variables}, work)


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
    with recording_proxy(server.port) as (base, seen):
        ready = set_up(agent, program, model, server, base, folder)
        (ready.work / "a.pdf").write_bytes(PDF)
        for goes_on in (False, True):
            ended = ready.run("Say hello by the tool", goes_on=goes_on)
            turns.append(ended.returncode == 0 and ANSWER in ended.stdout)
            told.append(ended.stdout + ended.stderr)
    made = ready.work / MADE
    runs = made.read_text().count("hello-from-tool") if made.exists() else 0
    ran = runs == len(turns) or not agent.calls_tools or (agent is READS_PDF and _was_read(seen))
    return Session(agent, model, tuple(turns), ran, tuple(seen), time.monotonic() - began, "\n".join(told))


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
