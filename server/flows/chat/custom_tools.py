"""Custom tools: functions of one text for the model, texts for the client. Pure."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.protocol.chat import ChoiceFinished, ToolCallDelta
from server.flows.chat.events import AnswerEvent
from server.flows.chat.tools import function_tool
from server.schemas.chat import GrammarText

HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
ESCAPE = rf'\\["\\/bfnrt]|{HIGH}{LOW}|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}'
WHOLE = re.compile(rf'(?:[^"\\]|{ESCAPE})*')  # up to the string's end, or to an escape that is not complete yet


class CustomInput:
    """The input of one custom tool's call, decoded from its JSON arguments: `feed` pieces as they come, then
    `finish`."""

    def __init__(self) -> None:
        self._arguments = ""
        self._parsed: int | None = None  # characters of them; None before the text begins
        self.text = ""  # so far

    def feed(self, arguments: str) -> str:
        """Add a piece of the arguments, and return the new part of the text."""
        self._arguments += arguments
        if self._parsed is None and (head := HEAD.match(self._arguments)):
            self._parsed = head.end()
        if self._parsed is None:
            return ""
        new = next(WHOLE.finditer(self._arguments, self._parsed))  # it may be empty
        self._parsed = new.end()
        return self._add(json.loads(f'"{new[0]}"', strict=False))

    def finish(self) -> str:
        """Return the rest of the text: arguments of another shape are the text as they are."""
        return self._add(self._arguments) if self._parsed is None else ""

    def _add(self, text: str) -> str:
        text = text.encode(errors="replace").decode()  # half a surrogate pair can't be sent
        self.text += text
        return text


@dataclass(frozen=True, slots=True)
class CustomCallDelta:
    """More of a custom tool's call. The first delta of call `index` has its id and name."""

    choice: int
    index: int
    text: str
    call_id: str | None = None
    name: str | None = None


CompletionEvent = AnswerEvent | CustomCallDelta


def custom_function(name: str, description: str | None, grammar: GrammarText | None) -> Mapping[str, Any]:
    """Return the tool in the format of chat templates. Local models alone are held to a Lark grammar, beside this
    schema; all of them read it."""
    text: dict[str, Any] = {"type": "string"}
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = f"^(?:{grammar.definition})$"
    elif grammar is not None:
        about = f"The input is text by this grammar:\n{grammar.definition}"
        description = f"{description}\n\n{about}" if description else about
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    return function_tool(name, description, parameters, strict=None, param="tools")


class CustomCalls:
    """The events of one answer in which calls of custom tools, known by `names`, are told from those of functions."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._inputs: dict[tuple[int, int], CustomInput] = {}  # by the call's choice and index

    def read(self, event: AnswerEvent) -> Iterator[CompletionEvent]:
        """Yield the event, or the events of a custom tool's call that it stands for."""
        if isinstance(event, ChoiceFinished):
            for (choice, index), read in self._inputs.items():
                if choice == event.choice and (rest := read.finish()):
                    yield CustomCallDelta(choice, index, rest)
            yield event
        elif isinstance(event, ToolCallDelta) and event.name in self._names:
            read = self._inputs[event.choice, event.index] = CustomInput()
            text = read.feed(event.arguments)
            yield CustomCallDelta(event.choice, event.index, text, event.call_id, event.name)
        elif isinstance(event, ToolCallDelta) and (event.choice, event.index) in self._inputs:
            if text := self._inputs[event.choice, event.index].feed(event.arguments):
                yield CustomCallDelta(event.choice, event.index, text)
        else:
            yield event
