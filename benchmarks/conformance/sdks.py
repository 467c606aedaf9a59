"""SDKs of others, through the scripts of tests/clients and tests/node: what each drew, edited, continued and said."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.harness import REPOSITORY, Server

CLIENTS = REPOSITORY / ".venv-clients" / "bin" / "python"
SCRIPTS = REPOSITORY / "tests" / "clients"
NODE = REPOSITORY / "tests" / "node"
LIMIT_S = 600
PARTS = ("drawn", "edited", "continued", "chats")
Json = dict[str, Any]
Passed = Mapping[str, tuple[int, int] | None]  # part -> passed of tried; None: the protocol has no such thing


@dataclass(frozen=True, slots=True)
class Seen:
    """What one SDK did."""

    name: str
    parts: Passed
    run_s: float
    failure: str = ""


def drive_sdks(server: Server) -> list[Seen]:
    """All of them, one after another."""
    found = []
    for name, calls in SDKS.items():
        found.append(_drive(server, name, calls))
        print(found[-1], flush=True)
    return found


Call = tuple[tuple[str | Path, ...], Callable[[Json], Passed]]


def _drive(server: Server, name: str, calls: Callable[[], tuple[str, list[Call]]]) -> Seen:
    began, parts, failures = time.monotonic(), dict[str, tuple[int, int] | None](), []
    released, commands = calls()
    for command, read in commands:
        try:
            seen = read(_run(server, command))
        except (subprocess.SubprocessError, LookupError, ValueError, TypeError) as error:
            failures.append(str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__)
            continue
        parts |= {part: _sum(parts.get(part), found) for part, found in seen.items()}
    return Seen(f"{name} {released}", parts, time.monotonic() - began, "; ".join(failures))


def _sum(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    return (one[0] + other[0], one[1] + other[1]) if one and other else one or other


def _run(server: Server, command: tuple[str | Path, ...]) -> Json:
    """The JSON that the script prints last. Raises CalledProcessError, TimeoutExpired and ValueError."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), server.key)
    environment = {**os.environ, "OPENAI_BASE_URL": f"{server.base}/v1", **keys}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    answer: Json = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _count(*oks: bool) -> tuple[int, int]:
    return sum(oks), len(oks)


def _pairs(results: Json, *, named: str = "") -> Passed:
    """Results by model: [drawn, edited]."""
    pairs = [found for name, found in results.items() if name.startswith(named) and name not in ("tool", "stream")]
    ok = [found if isinstance(found, list) else [False, False] for found in pairs]
    return {"drawn": _count(*(each[0] for each in ok)), "edited": _count(*(each[1] for each in ok))}


def _tool(found: object) -> Passed:
    """An image of the image tool, and the next of the chain."""
    oks = found if isinstance(found, list) else []
    return {"drawn": _count(oks[:1] == [True]), "continued": _count(oks[1:2] == [True])}


def _both(one: Passed, other: Passed) -> Passed:
    return {part: _sum(one.get(part), other.get(part)) for part in {**one, **other}}


def _drawn(results: Json) -> Passed:
    """Of draw.py and draw.mjs."""
    streamed = {"drawn": _count(all(results["stream"]))} if "stream" in results else {}
    return _both(_both(_pairs(results), _tool(results.get("tool"))), streamed)


def _langchain(results: Json) -> Passed:
    drawn, continued, edited = (results["pictures"] + [False] * 3)[:3]
    return {"drawn": _count(drawn), "edited": _count(edited), "continued": _count(continued)}


def _talked(results: Json) -> Passed:
    """Of talk.py, for OpenAI's dialect: whole and streamed alike, and errors as the SDK's own types."""
    errors = [results[name] for name in ("unknown", "overflow") if name in results]
    same = (results["text"], results["tokens"]) == (results["streamed"], results["streamed_tokens"])
    return {"chats": _count(same, same, *(error.endswith("Error") for error in errors))}


def _anthropic(results: Json) -> Passed:
    whole, streamed = results["text"] == results["streamed"], results["usage"] == results["streamed_usage"]
    tools = [bool(call[1]) for call in results["calls"]] + [results["after"] > 0]
    errors = [isinstance(results.get(name), list) for name in ("unknown", "field", "hosted", "overflow")]
    counted = results["counted"] == results["usage"][0]
    return {
        "drawn": None,
        "edited": None,
        "continued": None,
        "chats": _count(whole, streamed, *tools, counted, *errors),
    }


def _gemini(results: Json) -> Passed:
    images = {
        part: _count(results[part][0] == "image/png" and results[part][2] == "STOP") for part in ("edited", "continued")
    }
    drawn = _count(results["drawn"][2] == "STOP", results["streamed"] == 1)
    errors = [results[name][0] == "ClientError" for name in ("unknown", "size", "key")]
    same, counted = results["text"] == results["text_streamed"], results["counted"] == results["prompt_tokens"]
    chats = _count(same, same, bool(results["calls"]), counted, bool(results["model"]), *errors)
    return {**images, "drawn": drawn, "chats": chats}


def _node_responses(results: Json) -> Passed:
    first, second = (status == "completed" for status in results["turns"]["statuses"])
    background = results["background"] == "completed"
    return {"drawn": _count(first, results["stream"]["inOrder"], background), "continued": _count(second)}


def _node_chats(results: Json) -> Passed:
    text = results["chat"]["text"]
    whole = (results["stream"] == text, results["helper"] == {"text": text, "same": True})
    tools = (bool(results["parse"]["city"]), len(results["tools"]["calls"]) == 1)
    return {
        "chats": _count(True, *whole, *tools, *(error[0].endswith("Error") for error in results["errors"].values()))
    }


def _python_version(package: str) -> str:
    told = f"from importlib.metadata import version; print(version('{package}'))"
    return subprocess.run([str(CLIENTS), "-c", told], capture_output=True, text=True, check=True).stdout.strip()


def _node_version(package: str) -> str:
    found: Json = json.loads((NODE / "node_modules" / package / "package.json").read_text())
    return str(found["version"])


SDKS: dict[str, Callable[[], tuple[str, list[Call]]]] = {
    "OpenAI, Python": lambda: (
        version("openai"),
        [((sys.executable, SCRIPTS / "draw.py", "openai"), _drawn)],
    ),
    "OpenAI, Python, an older": lambda: (
        _python_version("openai"),
        [((CLIENTS, SCRIPTS / "draw.py", "openai"), _drawn)],
    ),
    "OpenAI, Node": lambda: (
        _node_version("openai"),
        [
            (("node", NODE / "draw.mjs"), lambda results: _pairs(results, named="bySdk")),
            (("node", NODE / "respond.mjs", "starter-chat"), _node_responses),
            (("node", NODE / "talk.mjs", "starter-chat", "starter-chat"), _node_chats),
        ],
    ),
    "Vercel AI SDK": lambda: (
        _node_version("ai"),
        [
            (
                ("node", NODE / "draw.mjs", "tool"),
                lambda results: _both(_pairs(results, named="byVercel"), _tool(results["tool"])),
            )
        ],
    ),
    "LiteLLM": lambda: (
        _python_version("litellm"),
        [
            ((CLIENTS, SCRIPTS / "draw.py", "litellm"), _drawn),
            ((CLIENTS, SCRIPTS / "talk.py", "litellm", "starter-chat"), _talked),
        ],
    ),
    "LangChain (langchain-openai)": lambda: (
        _python_version("langchain-openai"),
        [
            ((CLIENTS, SCRIPTS / "draw.py", "langchain"), _langchain),
            ((CLIENTS, SCRIPTS / "talk.py", "langchain", "starter-chat"), _talked),
        ],
    ),
    "Google's, Python (google-genai)": lambda: (
        _python_version("google-genai"),
        [((CLIENTS, SCRIPTS / "talk.py", "gemini", "gpt-4o-mini"), _gemini)],
    ),
    "Anthropic's, Python": lambda: (
        _python_version("anthropic"),
        [((CLIENTS, SCRIPTS / "talk.py", "anthropic", "starter-chat"), _anthropic)],
    ),
}
