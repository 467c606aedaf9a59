"""Text becomes pieces of an answer as it comes: what is said, what is thought, and calls with their arguments."""

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from pipelines.chat.tool_syntax import Fields

CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """More of call `index`: its name and id at first, then pieces of its arguments."""

    index: int
    arguments: str
    name: str | None = None
    call_id: str | None = None


Piece = Said | Thought | Called


class CallReader:
    """One call, as its JSON comes."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text = ""  # of the call so far
        self._read = 0  # of it has been handed on, or is about no argument
        self._depth = 0  # of brackets in the arguments
        self._closed = False
        self._quoted = self._escaped = False
        self.named = False

    def feed(self, text: str) -> list[Piece]:
        """More of the call."""
        self._text += text
        pieces: list[Piece] = []
        if not self.named and (head := CALL_HEAD.match(self._text)):
            self._read, self.named = head.end(), True
            pieces.append(self._begin(json.loads(head[1])))
        if self.named and (arguments := self._arguments()):
            pieces.append(Called(self._index, arguments))
        return pieces

    def finish(self, value: Any = None) -> list[Piece]:
        """The call is over. One in another shape is read as a whole, here or by the parser; what is no call is text."""
        if self.named:
            return []
        call = _call_in(value) or _call_in(_json_or_none(self._text))
        if call is None:
            return [Said(self._text)] if self._text.strip() else []
        return [self._begin(call[0]), Called(self._index, call[1])]

    def _begin(self, name: str) -> Called:
        self.named = True
        return Called(self._index, "", name, f"call_{uuid.uuid4().hex[:24]}")

    def _arguments(self) -> str:
        """What is new of the arguments, which end with the brace that closes their first."""
        start = self._read
        while self._read < len(self._text) and not self._closed:
            self._step(self._text[self._read])
            self._read += 1
        return self._text[start : self._read]

    def _step(self, character: str) -> None:
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
            self._closed = not self._depth


class Reader:
    """One answer, through transformers' response parser."""

    def __init__(self, fields: Fields, anchor: dict[str, Any], prefix: str, tools: list[Any]) -> None:
        """`prefix` is the prompt; the parser looks at what stands behind the last anchor in it."""
        template = {"fields": fields, **(anchor or {"start_anchor": "\0"})}
        self._parser = ResponseParser(template, prefix=prefix, tools=tools)
        self._call: CallReader | None = None
        self.calls = 0
        self.thinking = False
        self._after_call = False  # white space that follows a call is no text
        for event in self._parser.initial_events:
            self._take(event)

    @property
    def in_call(self) -> bool:
        """Whether a call has begun that is not over."""
        return self._call is not None

    def feed(self, text: str) -> list[Piece]:
        """More of the answer."""
        return [piece for event in self._parser.feed(text) for piece in self._take(event)]

    def finish(self) -> list[Piece]:
        """There is no more."""
        try:
            _, events = self._parser.finalize()
        except ValueError:  # an unfinished call in a syntax that the parser reads as a whole
            events = []
        pieces = [piece for event in events for piece in self._take(event)]
        if self._call is not None:
            pieces += self._close(None)
        return pieces

    def _take(self, event: dict[str, Any]) -> list[Piece]:
        field, kind = event["field"], event["type"]
        if field == "tool_calls":
            return self._take_call(kind, event)
        if field != "content":
            self.thinking = kind != "region_close"
        text: str = event["text"] if kind == "region_chunk" else ""
        if field == "content" and self._after_call:
            text = text.lstrip()
            self._after_call = not text
        if not text:
            return []
        return [Said(text) if field == "content" else Thought(text)]

    def _take_call(self, kind: str, event: dict[str, Any]) -> list[Piece]:
        if kind == "region_open" or self._call is None:
            self._call = CallReader(self.calls)
        if kind == "region_chunk":
            return self._call.feed(event["text"])
        return self._close(event["value"]) if kind == "region_close" else []

    def _close(self, value: Any) -> list[Piece]:
        call, self._call = self._call, None
        pieces = call.finish(value) if call else []
        self._after_call = bool(call and call.named)
        self.calls += self._after_call
        return pieces


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _call_in(value: Any) -> tuple[str, str] | None:
    """Name and arguments, as JSON text, of a call that was read as a whole."""
    call = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
