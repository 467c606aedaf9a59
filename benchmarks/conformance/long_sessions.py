"""Command-line agents of others at the end of a model's context: sessions that grow past it, and three turns more.

The models' output is scripted. All else is real: the agent learns from the server's error, or from its own setting,
that its conversation is too long, and shortens it by itself.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.conformance.agents import (
    AGENTS,
    ANSWER,
    UPSTREAM,
    Agent,
    agents_server,
    model_of,
    set_up,
)
from tests.support.harness import Server
from tests.support.recording_proxy import Exchange, recording_proxy

Row = tuple[str, ...]
CONTEXT = 40_000  # the first request of some has 20,000
MOST_TURNS = 14  # that a session may need to grow past the context
MORE_TURNS = 3
GROWTH = "".join(f"Line {number} of the notes says {number * 7919 % 1000}.\n" for number in range(300))  # of a turn


CLAUDE_OPTIONS = ("--tools", "Bash", "--system-prompt", "You write code.")  # its own prompt and tools are longer
TOLD = ("Codex CLI", "Gemini CLI")  # which shorten a session before it is too long, in one process alone
UNTOLD = 128_000  # what others are told, so that they meet the server's error
NAMES = ("Claude Code", "Codex CLI", "Gemini CLI", "Qwen Code", "opencode")
LONG = tuple(
    replace(agent, options=(*CLAUDE_OPTIONS, *agent.options)) if agent.name == "Claude Code" else agent
    for agent in AGENTS
    if agent.name in NAMES
)


@dataclass(frozen=True, slots=True)
class LongSession:
    """What one session was like: the turns that grew, how many requests were refused as too long, and which of the
    turns after that were answered."""

    agent: Agent
    model: str
    grown: int
    too_long: int
    after: tuple[bool, ...]
    longest: int
    exchanges: tuple[Exchange, ...]
    output: str


def drive_long(agent: Agent, model: str, server: Server, program: Path, folder: Path) -> LongSession:
    """Run turns until the conversation was too long and the agent has shortened it, and three more."""
    told: list[str] = []
    with recording_proxy(server.port) as (base, seen):
        ready = set_up(agent, program, model, server, base, folder, CONTEXT if agent.name in TOLD else UNTOLD)

        def turn(prompt: str) -> bool:
            ended = ready.run(prompt, goes_on=bool(told))
            told.append(ended.stdout + ended.stderr)
            return ended.returncode == 0 and ANSWER in ended.stdout

        grown = 0
        while grown < MOST_TURNS and not _was_shortened(seen):
            grown += 1
            turn(f"Note {grown}. Read this and say hello by the tool.\n{GROWTH}")
        after = tuple(turn(f"Say hello by the tool, {number}") for number in range(MORE_TURNS))
    longest = max((len(json.dumps(each.body)) for each in seen if each.status == 200), default=0)
    refused = sum(_is_too_long(each) for each in seen)
    return LongSession(agent, model, grown, refused, after, longest, tuple(seen), "\n=====\n".join(told))


def _is_too_long(exchange: Exchange) -> bool:
    return exchange.status == 400 and any(
        words in exchange.answer for words in ("context_length_exceeded", "prompt is too long", "input token count")
    )


def _was_shortened(seen: list[Exchange]) -> bool:
    """Return whether an answered request is much shorter than one before it that had as many tools."""
    sizes = [(len(_list_of(each.body, "tools")), len(json.dumps(each.body))) for each in seen if each.status == 200]
    return any(
        tools and tools == before and size < 0.8 * longest
        for index, (tools, size) in enumerate(sizes)
        for before, longest in sizes[:index]
    ) or any(_is_too_long(each) for each in seen)


def _list_of(body: Any, name: str) -> list[Any]:
    value = body.get(name) if isinstance(body, dict) else None
    return value if isinstance(value, list) else []


def long_sessions(work: Path) -> list[Row]:
    """Drive all of them. `work` keeps what was installed, and what each said."""
    rows = []
    with tempfile.TemporaryDirectory() as home, agents_server(Path(home), LONG, CONTEXT) as server:
        for row in _rows(server, Path(home), work):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
    return rows


def _rows(server: Server, home: Path, work: Path) -> Iterator[Row]:
    for agent in LONG:
        try:
            program = agent.install(work / "agents")
        except (subprocess.SubprocessError, OSError) as error:
            yield (f"{agent.name} {agent.version}", "-", f"not installed: {type(error).__name__}", "-", "-")
            continue
        for model in (model_of(agent), UPSTREAM):
            folder = home / f"{agent.tool}-{agent.name}-{model}".replace(" ", "-")
            session = drive_long(agent, model, server, program, folder)
            (work / f"long-{folder.name}.txt").write_text(session.output)
            shutil.rmtree(folder)
            yield (
                f"{agent.name} {agent.version}", "an upstream" if model == UPSTREAM else "local", str(session.grown),
                str(session.too_long), f"{sum(session.after)} of {MORE_TURNS}",
            )  # fmt: skip
