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
    input_opening: str  # what comes before the input of a tool that has a grammar of its own

    @abstractmethod
    def reader(self, schema: Schema, tail: str) -> ArgumentReader:
        """Return a reader for a tool with this schema; `tail` is what ends its calls."""

    @abstractmethod
    def rule(self, rules: Rules, schema: Schema) -> str:
        """Return the grammar expression of arguments that follow the schema."""

    @abstractmethod
    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments as a model writes them."""

    def endings(self) -> tuple[str, ...]:
        """Return the texts that end a free string in the arguments."""
        return ()


@dataclass(frozen=True, slots=True)
class JsonArguments(ArgumentStyle):
    """A JSON object, which is passed on as it is written."""

    beginning = r"\{"
    input_opening = '{"input": '

    def reader(self, schema: Schema, tail: str) -> ArgumentReader:
        """Return a reader that looks for the brace that closes the first one."""
        return JsonReader()

    def rule(self, rules: Rules, schema: Schema) -> str:
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

    def __init__(self, opening: str) -> None:
        self._opening = opening
        self._pending = ""

    def feed(self, text: str) -> str:
        """Add text, and return more of the JSON string."""
        if not self._opening:
            return _inside(text)
        self._pending += text
        if len(self._pending) < len(self._opening):
            return ""
        text, self._opening = self._pending.removeprefix(self._opening), ""
        return '{"input": "' + _inside(text)

    def finish(self, *, closed: bool) -> str:
        """Return the end of the JSON object."""
        return '"}'


def _inside(text: str) -> str:
    return json_string(text)[1:-1]


def json_string(text: str) -> str:
    """Return the text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)
