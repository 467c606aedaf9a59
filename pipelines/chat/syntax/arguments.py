"""The arguments of a call as models write them, which become JSON while they come in.

Each style has a reader, and the grammar of arguments that follow a schema.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.chat.syntax.rules import Rules

Schema = Mapping[str, Any]


class ArgumentReader(ABC):
    """The arguments of one call. Feed it text until it says what follows them."""

    rest: str | None = None  # what came behind the arguments, once they have ended

    @abstractmethod
    def feed(self, text: str) -> str:
        """Add text, and return what is new of the arguments, as JSON text."""

    def finish(self, *, closed: bool) -> str:
        """Return what is missing at the end of the call, which was `closed` or else cut short."""
        return ""


class ArgumentStyle(ABC):
    """How a family writes arguments."""

    beginning = ""  # a regular expression of how arguments begin, where the head does not end in a mark of its own
    has_end = False  # the rule has the end of the call: nothing else tells where the last argument ends
    input_opening: str  # what comes before the input of a tool that has a grammar of its own

    @abstractmethod
    def reader(self, schema: Schema, ends: tuple[str, ...]) -> ArgumentReader:
        """Return a reader for a tool with this schema; `ends` are the marks that end its calls, the first one first."""

    @abstractmethod
    def rule(self, rules: Rules, schema: Schema, end: str = "") -> str:
        """Return the grammar expression of arguments that follow the schema, before the `end` of the call."""

    @abstractmethod
    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments as a model writes them."""

    def endings(self, end: str = "") -> tuple[str, ...]:
        """Return the texts that end a free string in the arguments, before the `end` of the call."""
        return ()


@dataclass(frozen=True, slots=True)
class JsonArguments(ArgumentStyle):
    """A JSON object, which is passed on as it is written."""

    beginning = r"\{"
    input_opening = '{"input": '

    def reader(self, schema: Schema, ends: tuple[str, ...]) -> ArgumentReader:
        """Return a reader that looks for the brace that closes the first one."""
        return JsonReader()

    def rule(self, rules: Rules, schema: Schema, end: str = "") -> str:
        """Return the grammar expression of JSON that follows the schema."""
        return rules.json(schema)

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return the arguments as a JSON object."""
        return json.dumps(arguments, ensure_ascii=False)


class JsonReader(ArgumentReader):
    """Ends with the brace that closes the first one."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = False

    def feed(self, text: str) -> str:
        """Return the text up to the end of the object."""
        for index, character in enumerate(text):
            self._track(character)
            if not self._depth and not self._quoted and character in "}]":
                self.rest = text[index + 1 :]
                return text[: index + 1]
        return text

    def _track(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = character == "\\"
            self._quoted = character != '"'
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1


class InputReader(ArgumentReader):
    """The input of a tool with a grammar of its own: text up to the end of the call, which becomes {"input": ...}."""

    def __init__(self, opening: str, end: str, *, in_list: bool) -> None:
        """`end` is the mark behind it; empty where nothing follows. `in_list` tells of a bracket before that mark."""
        self._opening = opening
        self._end = end
        self._in_list = in_list
        self._pending = ""

    def feed(self, text: str) -> str:
        """Add text, and return more of the JSON string."""
        self._pending += text
        begun = ""
        if self._opening:
            if len(self._pending) < len(self._opening):
                return ""
            self._pending, self._opening = self._pending.removeprefix(self._opening), ""
            begun = '{"input": "'
        text, mark, _ = self._pending.partition(self._end) if self._end else (self._pending, "", "")
        if mark:
            self.rest, self._pending = self._pending[len(text) :], text
            return begun + self.finish(closed=True)
        held = next((n for n in range(len(self._end) - 1, 0, -1) if text.endswith(self._end[:n])), 0)
        certain = text[: len(text) - held]
        certain = certain.rstrip("] \n") if self._in_list else certain
        self._pending = text[len(certain) :]
        return begun + _without_quotes(certain)

    def finish(self, *, closed: bool) -> str:
        """Return the end of the JSON object."""
        text = self._pending.rstrip()
        return _without_quotes(text[:-1] if self._in_list and text.endswith("]") else self._pending) + '"}'


def _without_quotes(text: str) -> str:
    return json_string(text)[1:-1]


def json_string(text: str) -> str:
    """Return the text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)
