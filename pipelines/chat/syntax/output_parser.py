"""Incremental parsing of a model's output into deltas of text, reasoning, and tool calls with their arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transformers.utils.chat_parsing import ResponseParser

from pipelines.chat.syntax.calls import ANY_CHOICE, NOT_REASONING, CallFormat, CallsReader, ParserFields, ToolTable
from pipelines.protocol.chat import ChatDelta, ReasoningDelta, TextDelta

END_OF_CALLS: Final = "\udfff"  # which no text has


@dataclass(frozen=True, slots=True)
class DroppedText:
    """The end of a region whose text is dropped, such as a header."""


class OutputParser:
    """One choice's output: transformers' response parser finds its regions, a `CallsReader` reads those of calls, and
    finds their ends: the response parser would take every mark in an argument for one."""

    def __init__(
        self,
        fields: ParserFields,
        prefix: str,
        tools: tuple[Mapping[str, Any], ...] = (),
        call_format: CallFormat | None = None,
        anchor: Mapping[str, Any] | None = None,
        by_grammar: frozenset[str] = frozenset(),
    ) -> None:
        """`prefix` is the prompt; the parser starts behind the last `anchor` in it. `by_grammar` names the tools whose
        input has a grammar."""
        self._format = call_format
        if call_format and "tool_calls" in fields:
            others = {key: one for key, one in fields["tool_calls"].items() if not key.startswith("close")}
            fields = {**fields, "tool_calls": {**others, "close": END_OF_CALLS}}
        self._tools = ToolTable.of(tools, by_grammar)
        template = {"fields": fields, **(anchor or {"start_anchor": "\0"})}
        self._parser = ResponseParser(template, prefix=prefix, tools=list(tools))
        self._calls: CallsReader | None = None  # of the region that is open
        self._complete = 0  # calls of closed regions
        self._ending = False
        self.in_reasoning = False
        self._after_call = False  # white space that follows a call is dropped
        for event in self._parser.initial_events:
            self._handle(event)

    @property
    def in_call(self) -> bool:
        """Return whether a call has begun that is not complete."""
        return self._calls is not None and self._calls.begun > self._calls.completed

    @property
    def call_count(self) -> int:
        """Return how many calls are complete."""
        return self._complete + (self._calls.completed if self._calls else 0)

    def feed(self, text: str) -> list[ChatDelta | DroppedText]:
        """Return what this text completes."""
        return [piece for event in self._parser.feed(text) for piece in self._handle(event)]

    def flush(self) -> list[ChatDelta | DroppedText]:
        """Return what was held back until the end."""
        self._ending = True
        try:
            _, events = self._parser.finalize()
        except ValueError:  # an unfinished call in a syntax that the parser parses only as a whole
            events = []
        pieces = [piece for event in events for piece in self._handle(event)]
        return pieces + (self._close(None) if self._calls is not None else [])

    def _handle(self, event: dict[str, Any]) -> Sequence[ChatDelta | DroppedText]:
        field, kind = event["field"], event["type"]
        if field == "tool_calls":
            return self._handle_calls(kind, event)
        if field not in NOT_REASONING:
            self.in_reasoning = kind != "region_close"
        if field == "marker":
            return [DroppedText()] if kind == "region_close" else []
        text: str = event["text"] if kind == "region_chunk" else ""
        if field == "content" and self._after_call:
            text = text.lstrip()
            self._after_call = not text
        if not text:
            return []
        return [(TextDelta if field == "content" else ReasoningDelta)(ANY_CHOICE, text)]

    def _handle_calls(self, kind: str, event: dict[str, Any]) -> Sequence[ChatDelta | DroppedText]:
        if kind == "region_open" or self._calls is None:
            self._calls = CallsReader(self._format, self._tools, self._complete)
        if kind == "region_chunk":
            pieces = self._calls.feed(event["text"])
            ended = self._calls.rest is not None and not self._ending
            return pieces + self.feed(f"{END_OF_CALLS}{self._calls.rest}") if ended else pieces
        return self._close(event["value"]) if kind == "region_close" else []

    def _close(self, value: Any) -> list[ChatDelta]:
        calls, self._calls = self._calls, None
        if calls is None:
            return []
        pieces = calls.finish(value, closed=not self._ending)
        self._after_call = bool(calls.begun)
        self._complete += calls.completed
        return pieces
