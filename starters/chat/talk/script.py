"""A conversation as it is written down turn by turn, and which wordings training may see."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from starters.chat.talk.words import chance, made_up, pick
from starters.world.split import Split

Kind = Literal["picture", "edit", "no tool", "function", "result", "sum", "say", "chat", "unknown"]
STRANGE: Final = 0.1  # of the wordings that are learned, one word is made up
WORD: Final = re.compile(r"(?<![{\w'])[A-Za-z']{2,}(?![}\w'])")
HELD_OUT: Final = 7  # every seventh wording of a list is kept for measuring


@dataclass(frozen=True, slots=True)
class Expected:
    """What an assistant's turn is held to: the message at `index`, or any of the texts."""

    kind: Kind
    index: int
    texts: tuple[str, ...] = ()


@dataclass(slots=True)
class Script:
    """A conversation being written."""

    rng: np.random.Generator
    split: Split
    tools: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)

    def system(self, text: str) -> None:
        """The operator speaks."""
        self.messages.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        """The user speaks."""
        self.messages.append({"role": "user", "content": text})

    def answer(self, kind: Kind, texts: str | tuple[str, ...]) -> None:
        """The assistant says one of the texts."""
        allowed = (texts,) if isinstance(texts, str) else texts
        self.expected.append(Expected(kind, len(self.messages), allowed))
        said = allowed[int(self.rng.integers(len(allowed)))]
        self.messages.append({"role": "assistant", "content": said})

    def call(self, kind: Kind, name: str, arguments: dict[str, Any]) -> None:
        """The assistant calls a function."""
        self.expected.append(Expected(kind, len(self.messages)))
        function = {"name": name, "arguments": arguments}
        self.messages.append({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})

    def result(self, text: str) -> None:
        """What the function returned."""
        self.messages.append({"role": "tool", "content": text})

    def wording(self, wordings: tuple[str, ...]) -> str:
        """One of the wordings that this split may use."""
        allowed = wordings_of(wordings, self.split)
        return allowed[int(self.rng.integers(len(allowed)))]

    def strange_wording(self, wordings: tuple[str, ...]) -> str:
        """The same; in training, sometimes with a word that nobody knows.

        People use verbs that no list has. What they want can mostly be told from the rest, and from the tools.
        """
        wording = self.wording(wordings)
        known = tuple(WORD.finditer(wording))
        if self.split == "held-out" or not known or not chance(self.rng, STRANGE):
            return wording
        word = pick(self.rng, known)
        return wording[: word.start()] + made_up(self.rng) + wording[word.end() :]


def wordings_of(wordings: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """Every seventh wording is held out, in an order that the words alone decide; of fewer than four, none is."""
    if len(wordings) < 4:
        return wordings
    held_out = frozenset(sorted(wordings, key=_order)[::HELD_OUT])
    return tuple(wording for wording in wordings if (wording in held_out) == (split == "held-out"))


def _order(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
