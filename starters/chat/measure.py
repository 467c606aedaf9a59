"""`python -m starters.chat.measure WEIGHTS`: how well starter-chat answers held-out conversations.

Every turn of the assistant is generated anew, after the correct turns before it. A call is right if its name and
arguments are exactly the expected ones; words are right if they are one of the answers that the conversation allows.
Answers come from the server's chat engine, with the grammar that keeps calls within their schema. Greedy by default.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from pipelines.chat.engine import ChatEngine
from pipelines.device.offline import quiet_libraries
from pipelines.protocol.chat import ChatJob, ChatSampling, ChatSpec, ChoiceFinished, TextDelta, ToolCallDelta
from pipelines.protocol.images import Failed
from starters.chat.conversations.sample import conversations
from starters.chat.conversations.script import Expected, Script

NAME: Final = "starter-chat"
SEED: Final = 7  # of the conversations; not the seed of training
CALLS: Final = ("picture", "edit", "function")
CONCURRENCY: Final = 32  # requests at a time
MAX_TOKENS: Final = 120  # of an answer
TIME_LIMIT_S: Final = 600.0  # for an answer


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn to answer, and what is expected."""

    script: Script
    expected: Expected

    @property
    def expected_message(self) -> dict[str, Any]:
        message: dict[str, Any] = self.script.messages[self.expected.index]
        return message


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn, the message that was generated, and whether it ended by itself."""

    turn: Turn
    message: Mapping[str, Any]
    ended: bool

    @property
    def right(self) -> bool:
        """Whether the answer is an allowed one."""
        if self.turn.expected.kind in CALLS:
            return _calls(self.message) == _calls(self.turn.expected_message)
        return not _calls(self.message) and self.message.get("content") in self.turn.expected.texts

    @property
    def right_function(self) -> bool:
        """Whether the right function is called, or none where none is expected."""
        return [call["name"] for call in _calls(self.message)] == [
            call["name"] for call in _calls(self.turn.expected_message)
        ]


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares from 0 to 1, each over the turns that it concerns."""

    tool_calls: float
    arguments: float
    follow_ups: float
    without_tool: float
    no_needless_call: float
    ended: float
    by_kind: Mapping[str, tuple[float, int]]


def measure(folder: Path, *, count: int = 300, temperature: float | None = None, seed: int = SEED) -> Figures:
    """The figures of a checkpoint over `count` held-out conversations."""
    return figures(answer_all(folder, count=count, temperature=temperature, seed=seed))


def answer_all(folder: Path, *, count: int, temperature: float | None = None, seed: int = SEED) -> list[Answered]:
    """Every turn of `count` held-out conversations with its answer."""
    scripts = islice(conversations(seed, "held-out"), count)
    turns = [Turn(script, expected) for script in scripts for expected in script.expected]
    return asyncio.run(_answer_all(ChatSpec(NAME, folder, tools=True), turns, temperature or 0.0, seed))


def figures(answers: Sequence[Answered]) -> Figures:
    kinds: dict[str, list[Answered]] = defaultdict(list)
    for answered in answers:
        kinds[answered.turn.expected.kind].append(answered)
    calls = [answered for kind in CALLS for answered in kinds[kind]]
    words = [answered for answered in answers if answered.turn.expected.kind not in CALLS]
    return Figures(
        tool_calls=_share(calls, lambda a: a.right_function),
        arguments=_share(calls, lambda a: a.right),
        follow_ups=_share(kinds["edit"], lambda a: a.right),
        without_tool=_share(kinds["no tool"], lambda a: a.right),
        no_needless_call=_share(words, lambda a: a.right_function),
        ended=_share(answers, lambda a: a.ended),
        by_kind={kind: (_share(of, lambda a: a.right), len(of)) for kind, of in sorted(kinds.items()) if of},
    )


def table(measured: Figures) -> Table:
    rows = Table("starter-chat, held-out wordings", "right", "turns")
    rows.add_row("the right function is called", f"{measured.tool_calls:.1%}", "")
    rows.add_row("and with the right arguments", f"{measured.arguments:.1%}", "")
    rows.add_row("nothing is called where nothing should be", f"{measured.no_needless_call:.1%}", "")
    rows.add_row("the turn ends by itself", f"{measured.ended:.1%}", "", end_section=True)
    for kind, (share, count) in measured.by_kind.items():
        rows.add_row(kind, f"{share:.1%}", str(count))
    return rows


def _share(answers: Sequence[Answered], holds: Callable[[Answered], bool]) -> float:
    return sum(map(holds, answers)) / len(answers) if answers else float("nan")


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls") or ()]


async def _answer_all(spec: ChatSpec, turns: Sequence[Turn], temperature: float, seed: int) -> list[Answered]:
    engine = ChatEngine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    slots = asyncio.Semaphore(CONCURRENCY)

    async def answer(number: int, turn: Turn) -> Answered:
        job = ChatJob(
            str(number),
            spec,
            tuple(map(_as_sent, turn.script.messages[: turn.expected.index])),
            seed + number,
            TIME_LIMIT_S,
            tools=tuple(turn.script.tools),
            max_tokens=MAX_TOKENS,
            sampling=ChatSampling(temperature),
        )
        async with slots:
            return await _answer(engine, job, turn)

    return await asyncio.gather(*(answer(number, turn) for number, turn in enumerate(turns)))


def _as_sent(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as clients send it: the arguments of calls are JSON text."""
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [{"type": "function", "function": {**f, "arguments": json.dumps(f["arguments"])}} for f in functions]
    return {**message, "tool_calls": calls}


async def _answer(engine: ChatEngine, job: ChatJob, turn: Turn) -> Answered:
    content, ended = "", False
    names: dict[int, str | None] = {}
    arguments: dict[int, str] = defaultdict(str)
    async for event in engine.submit(job):
        match event:
            case TextDelta():
                content += event.text
            case ToolCallDelta():
                names.setdefault(event.index, event.name)
                arguments[event.index] += event.arguments
            case ChoiceFinished():
                ended = event.reason != "length"
            case Failed():
                raise RuntimeError(event.message)
    calls = [
        {"function": {"name": name, "arguments": _parse_arguments(arguments[index])}} for index, name in names.items()
    ]
    return Answered(turn, {"content": content, "tool_calls": calls}, ended)


def _parse_arguments(arguments: str) -> Any:
    """The arguments; None if the answer was cut off inside them."""
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--count", type=int, default=300, help="conversations")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--mistakes", type=int, default=0, help="how many wrong answers to show")
    arguments = parser.parse_args()
    quiet_libraries()
    answers = answer_all(arguments.weights / NAME, count=arguments.count, temperature=arguments.temperature)
    console = Console()
    for answered in islice((a for a in answers if not a.right), arguments.mistakes):
        console.print(f"{answered.turn.script.messages[: answered.turn.expected.index][-1]['content']!r}", markup=False)
        console.print(f"  wanted {answered.turn.expected_message}\n  got    {answered.message}", markup=False)
    console.print(table(figures(answers)))


if __name__ == "__main__":
    main()
