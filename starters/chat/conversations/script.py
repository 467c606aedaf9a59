"""A conversation, written turn by turn, and the wordings that each split may use."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from starters.chat.conversations.words import chance, invented_word, pick
from starters.world.split import Split

Kind = Literal["picture", "edit", "no tool", "function", "result", "sum", "say", "chat", "unknown"]
UNKNOWN_WORD_SHARE: Final = 0.1  # of training wordings: one word is replaced by an invented one
WORD: Final = re.compile(r"(?<![{\w'])[A-Za-z']{2,}(?![}\w'])")
HELD_OUT: Final = 7  # every seventh wording of a list is held out


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of an assistant's turn: the message at `index`, or any of the texts."""

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
        self.messages.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def answer(self, kind: Kind, texts: str | tuple[str, ...]) -> None:
        """The assistant answers with one of the texts."""
        allowed = (texts,) if isinstance(texts, str) else texts
        self.expected.append(Expected(kind, len(self.messages), allowed))
        text = allowed[int(self.rng.integers(len(allowed)))]
        self.messages.append({"role": "assistant", "content": text})

    def call(self, kind: Kind, name: str, arguments: dict[str, Any]) -> None:
        self.expected.append(Expected(kind, len(self.messages)))
        function = {"name": name, "arguments": arguments}
        self.messages.append({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})

    def result(self, text: str) -> None:
        self.messages.append({"role": "tool", "content": text})

    def wording(self, wordings: tuple[str, ...]) -> str:
        """A random wording of this split."""
        allowed = wordings_of(wordings, self.split)
        return allowed[int(self.rng.integers(len(allowed)))]

    def wording_with_unknown_word(self, wordings: tuple[str, ...]) -> str:
        """The same; in training, sometimes with one word replaced by an invented one.

        People use verbs that no list has. What they want can mostly be told from the rest, and from the tools.
        """
        wording = self.wording(wordings)
        known = tuple(WORD.finditer(wording))
        if self.split == "held-out" or not known or not chance(self.rng, UNKNOWN_WORD_SHARE):
            return wording
        word = pick(self.rng, known)
        return wording[: word.start()] + invented_word(self.rng) + wording[word.end() :]


def wordings_of(wordings: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """The wordings of a split. Every seventh in the order of their hashes is held out; of fewer than four, none is."""
    if len(wordings) < 4:
        return wordings
    held_out = frozenset(sorted(wordings, key=_order)[::HELD_OUT])
    return tuple(wording for wording in wordings if (wording in held_out) == (split == "held-out"))


def _order(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
