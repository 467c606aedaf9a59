"""The syntax of one checkpoint's output, chosen by its catalog entry, its tokenizer, its chat template and its type.

transformers' response parser finds the regions of an answer: by the tokenizer's own response template where it has one,
else by the fields that the table of families gives.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pipelines.chat.syntax import harmony
from pipelines.chat.syntax.calls import CONTENT, NOT_REASONING, CallFormat, ParserFields
from pipelines.chat.syntax.families import BARE, HERMES, TABLE, choose
from pipelines.chat.syntax.known import ALL_THOUGHTS, LAST_WORDS, Thoughts

ThoughtState = Literal["open", "closed", "free"]  # where a prompt ends: in thoughts, behind them, or before any


@dataclass(frozen=True, slots=True)
class OutputSyntax:
    """How one checkpoint writes thoughts and calls."""

    name: str  # in the table; "own" by the tokenizer's response template; "unknown"
    fields: ParserFields  # for the response parser
    anchor: Mapping[str, Any]  # where in a prompt the output begins; empty when only open thoughts matter
    thoughts: Thoughts | None
    calls: CallFormat | None  # None: there is no grammar for them
    is_harmony: bool = False
    starts_open: bool = False  # the model begins with thoughts, though neither it nor the prompt opens them

    @classmethod
    def of(
        cls, tokenizer: Any, chat_template: str, model_type: str = "", chosen: str | None = None, shown: str = ""
    ) -> Self:
        """Return the `chosen` syntax of the table, else what files and type say. `shown` is a probe's call as the
        template writes it. Raises KeyError for an unknown one."""
        vocabulary = {str(token) for token in tokenizer.added_tokens_decoder.values()}
        thoughts = _thoughts(chat_template, vocabulary)
        if thoughts and (words := LAST_WORDS.get(model_type)):
            thoughts = replace(thoughts, last_words=words)
        name = chosen or choose(chat_template, model_type, vocabulary, shown)
        own = getattr(tokenizer, "response_template", None)
        if own and not chosen and (name is None or _is_hermes(own, chat_template)):
            return cls._own(own, chat_template, thoughts)
        if name == "harmony":
            fields = {**harmony.FIELDS, **harmony.CALLS.parser_fields(), **CONTENT}
            return cls(name, fields, {}, None, harmony.CALLS, is_harmony=True)
        known = TABLE[name] if name else None
        calls, thoughts = (known.calls, known.thoughts or thoughts) if known else (None, thoughts)
        fields = {**(_thought_fields(thoughts) if thoughts else {}), **(calls or BARE).parser_fields(), **CONTENT}
        if known and known.marker:
            fields["marker"] = _marker(known.marker)
        opens = bool(thoughts and thoughts.opening.rstrip() in chat_template)
        starts_open = bool(thoughts and thoughts.closing in chat_template and not opens)
        return cls(name or "unknown", fields, {}, thoughts, calls, starts_open=starts_open)

    @classmethod
    def _own(cls, own: Mapping[str, Any], chat_template: str, thoughts: Thoughts | None) -> Self:
        fields = {name: _anchor_to_start(_as_text(field), name) for name, field in own["fields"].items()}
        anchor = {key: own[key] for key in ("start_anchor", "start_anchor_pattern") if key in own}
        has_thoughts = any(name not in NOT_REASONING for name in fields)
        calls = HERMES if _is_hermes(own, chat_template) else None
        fields |= calls.parser_fields() if calls else {}
        return cls("own", fields, anchor, thoughts if has_thoughts else None, calls)

    def parser_fields(self, *, tools: bool, required: bool) -> ParserFields:
        """Return the fields for a request: without calls if it has no tools."""
        others = {name: field for name, field in self.fields.items() if name != "tool_calls"}
        if required:
            return {**others, **(self.calls or BARE).parser_fields()}
        return self.fields if tools else others

    def call_format(self, *, required: bool) -> CallFormat | None:
        """Return how calls are read; None where the parser gives them as values."""
        if required or self.name != "own":
            return self.calls or BARE
        return self.calls

    @property
    def is_unknown(self) -> bool:
        """Return whether its calls come as text, since the syntax of its calls is not known."""
        return self.name == "unknown"

    @property
    def written_calls(self) -> CallFormat | None:
        """Return how to write calls as the model does; None where one call is not all of a message."""
        return None if self.is_harmony else self.calls

    @property
    def has_regions(self) -> bool:
        """Return whether an answer without tools can be more than text."""
        return any(name not in ("tool_calls", "content") for name in self.fields)

    @property
    def thought_ends(self) -> tuple[str, str, str] | None:
        """Return what ends a thought that may go on no longer: last words, the mark, and the mark of one that begins
        once more. None where thoughts are not known."""
        if self.is_harmony:
            return "", harmony.THOUGHT_END, harmony.THOUGHT_END + harmony.ANSWER
        return (self.thoughts.last_words, self.thoughts.closing, "") if self.thoughts else None

    def thought_state(self, prompt: str) -> ThoughtState:
        """Return the state of thoughts at the end of the prompt: "open" in thoughts, "closed" behind them, else
        "free"."""
        if self.thoughts is None:
            return "free"
        end, thoughts = prompt.rstrip(), self.thoughts
        if self.starts_open or end.endswith(thoughts.opening.rstrip()):
            return "open"
        closing = thoughts.opening + thoughts.closing + thoughts.turn if thoughts.turn else thoughts.closing
        behind = (closing, thoughts.answer_opening) if thoughts.answer_opening else closing
        return "closed" if end.endswith(behind) else "free"


def _thoughts(template: str, vocabulary: set[str]) -> Thoughts | None:
    for thoughts in ALL_THOUGHTS:
        known = thoughts.closing in template or {thoughts.opening.strip(), thoughts.closing} <= vocabulary
        if known and thoughts.answer_opening in template:
            return thoughts
    return None


def _thought_fields(thoughts: Thoughts) -> ParserFields:
    """Return the field of thoughts, which begin an answer or follow other thoughts, and the marks of the answer."""
    opening, closing = re.escape(thoughts.opening.rstrip()), re.escape(thoughts.closing)
    turn = f"(?:{re.escape(thoughts.turn)})?"
    start = rf"(?:\A|{closing}\s*{turn})"
    fields: ParserFields = {
        "reasoning_content": {
            "open_pattern": _pattern_at_start(start, opening),
            "close_pattern": rf"\s*{closing}\s*{turn}",
            "content": "text",
            "repeats": True,
        }
    }
    begin, end = re.escape(thoughts.answer_opening), re.escape(thoughts.answer_closing)
    answer = rf"|{_pattern_at_start(start, begin)}|\s*{end}\s*\Z" if begin else ""
    fields["marker"] = _marker(rf"\A\s*{closing}\s*{answer}")  # some end thoughts that they did not begin
    return fields


def _marker(pattern: str) -> ParserFields:
    """Return a field of what is dropped."""
    return {"open_pattern": pattern, "close_pattern": "", "content": "text", "repeats": True}


def _is_hermes(response_template: Mapping[str, Any], chat_template: str) -> bool:
    field = response_template["fields"].get("tool_calls", {})
    opening = str(field.get("open", field.get("open_pattern", "")))
    return HERMES.begin in chat_template and opening.endswith(HERMES.begin) and field.get("content") == "json"


def _as_text(field: ParserFields) -> ParserFields:
    """Return a field of JSON calls as text: a `CallsReader` reads them as they come, the library at their end."""
    if field.get("content") != "json" or field.get("transform") != {"type": "function", "function": "{content}"}:
        return field
    return {**{key: value for key, value in field.items() if key != "transform"}, "content": "text"}


def _anchor_to_start(field: ParserFields, name: str) -> ParserFields:
    """Return a field of thoughts that begin an answer or follow other thoughts, and nowhere else."""
    opening, closing = field.get("open"), field.get("close")
    if name in NOT_REASONING or not isinstance(opening, str) or not isinstance(closing, str):
        return field
    others = {key: value for key, value in field.items() if key not in ("open", "close")}
    pattern = _pattern_at_start(rf"(?:\A|{re.escape(closing)})", re.escape(opening.rstrip()))
    return {**others, "open_pattern": pattern, "close_pattern": rf"\s*{re.escape(closing)}\s*"}


def _pattern_at_start(start: str, mark: str) -> str:
    """Return the pattern of a mark that stands nowhere but behind `start`. What is before it is looked at last: where
    that comes first, the package regex takes other texts (`<mark> <b>`) for its beginning, and holds them back."""
    return rf"\s*{mark}(?<={start}\s*{mark})\s*"


def marker_text(fields: ParserFields, calls: CallFormat | None) -> str:
    """Return a text with all markers that a parser of these fields looks for."""
    own = [calls.head, calls.tail, calls.begin, calls.end, calls.outer_begin, calls.outer_end] if calls else []
    arguments = repr(calls.arguments) if calls else ""
    return json.dumps(fields, ensure_ascii=False).replace("\\", "") + " ".join(own) + arguments
