"""Command-line agents of others at the end of a model's context: sessions that grow past it, and three turns more.

The models' output is scripted. All else is real: the agent learns from the server's error, or from its own setting,
that its conversation is too long, and shortens it by itself.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.conformance.agents import (
    AGENTS,
    ANSWER,
    UPSTREAM,
    Agent,
    Place,
    agents_server,
    environment_of,
    install,
    model_of,
    run_agent,
)
from tests.support.harness import Server
from tests.support.recording_proxy import Exchange, recording_proxy

Row = tuple[str, ...]
CONTEXT = 40_000  # the first request of some has 20,000
MOST_TURNS = 14  # that a session may need to grow past the context
MORE_TURNS = 3
GROWTH = "".join(f"Line {number} of the notes says {number * 7919 % 1000}.\n" for number in range(300))  # of a turn


def _shorter(
    command: Callable[[Place, str, bool], list[str]], *options: str
) -> Callable[[Place, str, bool], list[str]]:
    """Return the command with options that leave room in the context."""

    def call(place: Place, prompt: str, goes_on: bool) -> list[str]:
        program, *rest = command(place, prompt, goes_on)
        return [program, *options, *rest]

    return call


def _at_limit(agent: Agent) -> Agent:
    """Return the agent as it is used with so short a context."""
    if agent.name == "Claude Code":  # whose own prompt and tools are longer
        return replace(agent, command=_shorter(agent.command, "--tools", "Bash", "--system-prompt", "You write code."))
    if agent.name == "Codex CLI":
        return replace(agent, set_up=_codex_setup(agent.set_up))
    if agent.name == "Gemini CLI":
        return replace(agent, set_up=_gemini_setup(agent.set_up))
    return agent


def _codex_setup(set_up: Callable[[Place], Mapping[str, str]]) -> Callable[[Place], Mapping[str, str]]:
    """Return a set-up with the context: after an error, a session shortens itself in the same process alone."""

    def write(place: Place) -> Mapping[str, str]:
        variables = set_up(place)
        path = place.home / ".codex" / "config.toml"
        path.write_text(f"model_context_window = {CONTEXT}\n{path.read_text()}")
        return variables

    return write


def _gemini_setup(set_up: Callable[[Place], Mapping[str, str]]) -> Callable[[Place], Mapping[str, str]]:
    """Return a set-up with the share of a million tokens, which it takes every model for, at which it compresses."""

    def write(place: Place) -> Mapping[str, str]:
        variables = set_up(place)
        path = place.home / ".gemini" / "settings.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "model": {"compressionThreshold": 0.03}}))
        return variables

    return write


LONG = tuple(_at_limit(agent) for agent in AGENTS if agent.name != "Continue")


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
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    told: list[str] = []
    with recording_proxy(server.port) as (base, seen):
        place = Place(home, work, program, base, server.key, model)
        own = environment_of(agent, place)

        def turn(prompt: str) -> bool:
            ended = run_agent(agent.command(place, prompt, bool(told)), own, work)
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
            place = work / "agents" / agent.package.rpartition("/")[2]
            program = install(place, f"{agent.package}@{agent.version}") / "node_modules" / ".bin"
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
