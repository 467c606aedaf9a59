"""Incremental parsing of a model's output into text, reasoning, and tool calls with their arguments."""

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from pipelines.chat.tool_syntax import ParserFields

CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
INPUT_HEAD = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "input": ')


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """More of call `index`: its name and id first, then parts of its arguments."""

    index: int
    arguments: str
    name: str | None = None
    call_id: str | None = None


Piece = TextPiece | ReasoningPiece | ToolCallPiece


class ToolCallParser:
    """One call, while it comes in. The input of the tools `by_grammar` is no JSON, and passed on as {"input": ...}."""

    def __init__(self, index: int, by_grammar: frozenset[str]) -> None:
        self._index = index
        self._by_grammar = by_grammar
        self._is_input = False
        self._text = ""  # of the call so far
        self._parsed = 0  # characters of it were passed on or precede the arguments
        self._depth = 0  # of open brackets in the arguments
        self._closed = False
        self._quoted = self._escaped = False
        self.has_name = False

    def feed(self, text: str) -> list[Piece]:
        """Add a call's text, and return the pieces that it completes."""
        self._text += text
        if self._is_input:
            return [ToolCallPiece(self._index, _inside_json(text))]
        if self._by_grammar and not self.has_name and (head := INPUT_HEAD.match(self._text)):
            name = json.loads(head[1])
            self._is_input = name in self._by_grammar
            if self._is_input:
                start = '{"input": "' + _inside_json(self._text[head.end() :])
                return [self._begin(name), ToolCallPiece(self._index, start)]
        pieces: list[Piece] = []
        if not self.has_name and (head := CALL_HEAD.match(self._text)):
            self._parsed, self.has_name = head.end(), True
            pieces.append(self._begin(json.loads(head[1])))
        if self.has_name and (arguments := self._arguments()):
            pieces.append(ToolCallPiece(self._index, arguments))
        return pieces

    def finish(self, value: Any = None) -> list[Piece]:
        """End the call, and return its last pieces. A call in another shape is parsed as a whole, here or as `value`;
        other JSON is text."""
        if self._is_input:
            return [ToolCallPiece(self._index, '"}')]
        if self.has_name:
            return []
        call = _name_and_arguments(value) or _name_and_arguments(_json_or_none(self._text))
        if call is None:
            return [TextPiece(self._text)] if self._text.strip() else []
        return [self._begin(call[0]), ToolCallPiece(self._index, call[1])]

    def _begin(self, name: str) -> ToolCallPiece:
        self.has_name = True
        return ToolCallPiece(self._index, "", name, f"call_{uuid.uuid4().hex[:24]}")

    def _arguments(self) -> str:
        """Return the part of the arguments that is new. They end with the brace that closes their first one."""
        start = self._parsed
        while self._parsed < len(self._text) and not self._closed:
            self._track(self._text[self._parsed])
            self._parsed += 1
        return self._text[start : self._parsed]

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
            self._closed = not self._depth


class OutputParser:
    """One choice's output, through transformers' response parser."""

    def __init__(
        self,
        fields: ParserFields,
        anchor: dict[str, Any],
        prefix: str,
        tools: list[Any],
        by_grammar: frozenset[str] = frozenset(),
    ) -> None:
        """Begin a choice. `prefix` is the prompt; the parser starts behind the last anchor in it. `by_grammar` names
        the tools whose input has a grammar."""
        self._by_grammar = by_grammar
        template = {"fields": fields, **(anchor or {"start_anchor": "\0"})}
        self._parser = ResponseParser(template, prefix=prefix, tools=tools)
        self._call: ToolCallParser | None = None
        self.call_count = 0
        self.in_reasoning = False
        self._after_call = False  # white space that follows a call is dropped
        for event in self._parser.initial_events:
            self._handle(event)

    @property
    def in_call(self) -> bool:
        """Return whether the output is inside a tool call."""
        return self._call is not None

    def feed(self, text: str) -> list[Piece]:
        """Add text, and return the pieces that it completes."""
        return [piece for event in self._parser.feed(text) for piece in self._handle(event)]

    def flush(self) -> list[Piece]:
        """End the output, and return its last pieces."""
        try:
            _, events = self._parser.finalize()
        except ValueError:  # an unfinished call in a syntax that the parser parses only as a whole
            events = []
        pieces = [piece for event in events for piece in self._handle(event)]
        if self._call is not None:
            pieces += self._close(None)
        return pieces

    def _handle(self, event: dict[str, Any]) -> list[Piece]:
        field, kind = event["field"], event["type"]
        if field == "tool_calls":
            return self._handle_call(kind, event)
        if field != "content":
            self.in_reasoning = kind != "region_close"
        text: str = event["text"] if kind == "region_chunk" else ""
        if field == "content" and self._after_call:
            text = text.lstrip()
            self._after_call = not text
        if not text:
            return []
        return [TextPiece(text) if field == "content" else ReasoningPiece(text)]

    def _handle_call(self, kind: str, event: dict[str, Any]) -> list[Piece]:
        if kind == "region_open" or self._call is None:
            self._call = ToolCallParser(self.call_count, self._by_grammar)
        if kind == "region_chunk":
            return self._call.feed(event["text"])
        return self._close(event["value"]) if kind == "region_close" else []

    def _close(self, value: Any) -> list[Piece]:
        call, self._call = self._call, None
        pieces = call.finish(value) if call else []
        self._after_call = bool(call and call.has_name)
        self.call_count += self._after_call
        return pieces


def _inside_json(text: str) -> str:
    """Return the text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _name_and_arguments(value: Any) -> tuple[str, str] | None:
    """Return the name and the arguments of a call that was parsed as a whole; the arguments as JSON text. None if it is
    no call."""
    call = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
