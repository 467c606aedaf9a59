"""`python -m starters.chat.measure WEIGHTS`: what starter-chat gets right in wordings and scenes it never saw.

Every assistant's turn of some held-out conversations is answered anew, the turns before it being as they should. A call
counts when it is the call that was asked for, name and arguments to the letter; words count when they are an answer
that the conversation allows. Answers come from the server's chat engine, which lets no call be written that its schema
does not allow. Greedy unless a temperature is given.
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
from starters.chat.talk.mix import conversations
from starters.chat.talk.script import Expected, Script

NAME: Final = "starter-chat"
SEED: Final = 7  # of the conversations; another one than training's, though their wordings differ already
CALLS: Final = ("picture", "edit", "function")
TOGETHER: Final = 32  # turns answered at once
LONGEST: Final = 120  # tokens of an answer
LIMIT_S: Final = 600.0  # for an answer


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn to answer, and what it is held to."""

    script: Script
    expected: Expected

    @property
    def wanted(self) -> dict[str, Any]:
        """The message that the conversation has here."""
        message: dict[str, Any] = self.script.messages[self.expected.index]
        return message


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn, the message that the checkpoint answered, and whether it ended by itself."""

    turn: Turn
    message: Mapping[str, Any]
    ended: bool

    @property
    def right(self) -> bool:
        """Whether the answer is one that is allowed."""
        if self.turn.expected.kind in CALLS:
            return _calls(self.message) == _calls(self.turn.wanted)
        return not _calls(self.message) and self.message.get("content") in self.turn.expected.texts

    @property
    def right_function(self) -> bool:
        """Whether a call names the right function, and nothing is called where nothing should be."""
        return [call["name"] for call in _calls(self.message)] == [call["name"] for call in _calls(self.turn.wanted)]


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares from 0 to 1, over the turns that they concern."""

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
    """The shares of right answers."""
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
    """The figures to read."""
    shown = Table("starter-chat, held-out wordings", "right", "turns")
    shown.add_row("the right function is called", f"{measured.tool_calls:.1%}", "")
    shown.add_row("and with the right arguments", f"{measured.arguments:.1%}", "")
    shown.add_row("nothing is called where nothing should be", f"{measured.no_needless_call:.1%}", "")
    shown.add_row("the turn ends by itself", f"{measured.ended:.1%}", "", end_section=True)
    for kind, (share, count) in measured.by_kind.items():
        shown.add_row(kind, f"{share:.1%}", str(count))
    return shown


def _share(answers: Sequence[Answered], holds: Callable[[Answered], bool]) -> float:
    return sum(map(holds, answers)) / len(answers) if answers else float("nan")


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls") or ()]


async def _answer_all(spec: ChatSpec, turns: Sequence[Turn], temperature: float, seed: int) -> list[Answered]:
    engine = ChatEngine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    places = asyncio.Semaphore(TOGETHER)

    async def answer(number: int, turn: Turn) -> Answered:
        job = ChatJob(
            str(number),
            spec,
            tuple(map(_sent, turn.script.messages[: turn.expected.index])),
            seed + number,
            LIMIT_S,
            tools=tuple(turn.script.tools),
            max_tokens=LONGEST,
            sampling=ChatSampling(temperature),
        )
        async with places:
            return await _answer(engine, job, turn)

    return await asyncio.gather(*(answer(number, turn) for number, turn in enumerate(turns)))


def _sent(message: Mapping[str, Any]) -> Mapping[str, Any]:
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
    calls = [{"function": {"name": name, "arguments": _whole(arguments[index])}} for index, name in names.items()]
    return Answered(turn, {"content": content, "tool_calls": calls}, ended)


def _whole(arguments: str) -> Any:
    """The arguments; None where the answer was cut off in them."""
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def main() -> None:
    """The command."""
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
        console.print(f"  wanted {answered.turn.wanted}\n  got    {answered.message}", markup=False)
    console.print(table(figures(answers)))


if __name__ == "__main__":
    main()
