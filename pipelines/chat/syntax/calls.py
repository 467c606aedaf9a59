"""Tool calls as a family writes them: what surrounds them, their heads, and how one reads them while they come in."""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.chat.syntax.arguments import ArgumentReader, ArgumentStyle, InputReader, JsonArguments, Schema
from pipelines.protocol.chat import ChatDelta, TextDelta, ToolCallDelta

ParserFields = dict[str, Any]  # as transformers' response templates have them
CONTENT: Final[ParserFields] = {"content": {"content": "text"}}
NOT_REASONING: Final = frozenset({"content", "tool_calls", "marker"})
JSON_NAME: Final = r'"(?P<name>(?:[^"\\]|\\.)*)"'
OTHER_KEYS: Final = r'(?:"(?:id|type|tool_call_id|index)"\s*:\s*(?:"[^"]*"|\d+)\s*,\s*)*'
JSON_HEAD: Final = (  # in any spelling of the keys, with ids and types before and between
    rf'\{{\s*{OTHER_KEYS}"(?:name|tool_name)"\s*:\s*{JSON_NAME}\s*,\s*{OTHER_KEYS}'
    r'"(?:arguments|parameters|args)"\s*:\s*(?=\{)'
)
NAME: Final = r"[\w.:\-/]+"  # of a function, as requests may have it
PLAIN_NAME: Final = rf"(?P<name>{NAME}?)"
ANY_CHOICE: Final = 0  # of the deltas that are read: whoever has the reader knows which choice it reads


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A call is `begin`, `head`, the arguments, `tail`, `end`. Several may stand between `outer_begin` and `outer_end`.

    In `head`, {name} is the function, {number} and {id} are what the model makes up.
    """

    head: str
    arguments: ArgumentStyle = field(default_factory=JsonArguments)
    tail: str = ""
    begin: str = ""
    end: str = ""
    outer_begin: str = ""
    outer_end: str = ""
    header: str = ""  # of the message that calls are in
    answer: str = ""  # what text begins with, where calls have no first marker
    separator: str = "\n"
    repeats: bool = True  # several calls in one answer
    head_pattern: str = ""  # how it is read, where models write it in more than one way
    name_alone: bool = False  # whether a call without arguments is no more than a name
    lead: str = ""  # what the first marker must be followed by; elsewhere the marker is text
    lead_pattern: str = ""  # the same as a regular expression, where it is no fixed text
    opening_pattern: str = ""  # all openings that are understood; by default the first marker
    closing_pattern: str = ""  # by default the last marker

    @property
    def opening(self) -> str:
        """Return the first marker of a call."""
        return self.outer_begin or self.begin

    def parser_fields(self) -> ParserFields:
        """Return the field of transformers' response parser, whose text a `CallsReader` reads."""
        lead = self.lead_pattern or re.escape(self.lead)
        follows = rf"(?=\s*{lead})" if lead else ""
        opening = self.opening_pattern or rf"\s*{re.escape(self.opening)}{follows}"
        closing = self.outer_end or self.end
        close = {"close": closing} if closing else {}
        if self.closing_pattern:
            close = {"close_pattern": self.closing_pattern}
        return {"tool_calls": {"open_pattern": opening, **close, "repeats": True, "content": "text"}}

    def written(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """Return the text of calls, by their names and arguments, as a model of the family writes it."""
        texts = [self._one(name, arguments, number) for number, (name, arguments) in enumerate(calls)]
        if self.lead == "[":
            return f"{self.outer_begin}[{', '.join(texts)}]{self.outer_end}"
        return f"{self.outer_begin}{self.separator.join(texts)}{self.outer_end}"

    def _one(self, name: str, arguments: Mapping[str, Any], number: int) -> str:
        values = {"{name}": name, "{number}": str(number), "{id}": f"{number:09}"}
        head, tail = self.head, self.tail
        for key, value in values.items():
            head, tail = head.replace(key, value), tail.replace(key, value)
        return f"{self.begin}{head}{self.arguments.written(arguments)}{tail}{self.end}"

    def head_regex(self) -> re.Pattern[str]:
        """Return what the head of a call matches, up to its arguments."""
        if self.head_pattern:
            return re.compile(self.head_pattern)
        if self.head.startswith('{"'):
            return re.compile(JSON_HEAD)
        pattern = re.escape(self.head).replace(r"\{name\}", PLAIN_NAME).replace(r"\{number\}", r"\d+")
        pattern = re.sub(r"(\\?\s)+", r"\\s*", pattern.replace(r"\{id\}", r"\w+"))
        before = rf"\s*(?={self.arguments.beginning})" if self.arguments.beginning else ""
        return re.compile(pattern + before)

    @property
    def input_end(self) -> str:
        """Return the mark that ends the input of a tool with a grammar of its own; empty for none."""
        return self.end or self.outer_end or self.begin

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the marks that end a call, the first one first."""
        return tuple(mark for mark in (self.tail.strip(), self.end, self.outer_end) if mark)

    def closing_regex(self) -> re.Pattern[str] | None:
        """Return what ends calls where no arguments are open; None where they last to the end of the answer."""
        pattern = self.closing_pattern or re.escape(self.outer_end or self.end)
        return re.compile(pattern) if pattern else None

    def skipped(self) -> re.Pattern[str]:
        """Return what may stand between calls: white space, punctuation, markers, and what follows arguments."""
        markers = (self.outer_begin, self.begin, self.end if self.outer_end else "", self.tail.strip())
        marks = "|".join(re.escape(marker) for marker in markers if marker)
        return re.compile("(?:" + (f"{marks}|" if marks else "") + r',\s*"\w+"\s*:\s*"[^"]*"|\s|[\[\],;}])*')


@dataclass(frozen=True, slots=True)
class ToolTable:
    """The tools of a request: the schemas of their parameters, and which have a grammar for their input."""

    schemas: Mapping[str, Schema] = field(default_factory=dict)
    by_grammar: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tools: tuple[Mapping[str, Any], ...], by_grammar: frozenset[str] = frozenset()) -> "ToolTable":
        """Return the table of tools as requests have them."""
        functions = [tool["function"] for tool in tools]
        return cls({each["name"]: each.get("parameters") or {} for each in functions}, by_grammar)


class CallsReader:
    """One or several calls, while they come in: names and ids first, then more and more of their arguments.

    A mark that ends calls is a part of a text where it stands inside an argument.
    """

    rest: str | None = None  # what came behind the calls, once they have ended

    def __init__(self, call_format: CallFormat | None, tools: ToolTable, first_index: int) -> None:
        """Without a format, calls come as values that were parsed as a whole."""
        self._format = call_format
        self._tools = tools
        self._index = first_index  # of the call that is open or comes next
        self._text = ""  # that was not read yet
        self._arguments: ArgumentReader | None = None  # of the open call
        self._head = call_format.head_regex() if call_format else re.compile(JSON_HEAD)
        self._skipped = call_format.skipped() if call_format else re.compile(r"\s*")
        self._closing = call_format.closing_regex() if call_format else None
        self.begun = self.completed = 0  # calls

    def feed(self, text: str) -> list[ChatDelta]:
        """Add text of the region, and return the deltas that it completes."""
        self._text += text
        return list(self._steps())

    def finish(self, value: Any = None, *, closed: bool) -> list[ChatDelta]:
        """Return what the region's end completes. Calls in another shape are parsed as a whole, here or as `value`;
        what is no call is text, unless it is the beginning of one that was cut short."""
        if self._arguments is not None:
            pieces: list[ChatDelta] = self._more(self._arguments.finish(closed=closed))
            self._end_call()
            return pieces
        if self.begun:
            return []
        calls = list(_calls(value)) or list(_calls(_json_or_none(self._text))) or self._without_arguments(closed)
        if not calls:
            keeps = self._text.strip() and (closed or self._format is None or not self._format.opening)
            return [TextDelta(ANY_CHOICE, self._text)] if keeps else []
        return [piece for name, arguments in calls for piece in self._whole(name, arguments)]

    def _without_arguments(self, closed: bool) -> list[tuple[str, str]]:
        """Return the call that is no more than a name."""
        alone = self._format is not None and self._format.name_alone and closed
        return [(self._text.strip(), "{}")] if alone and re.fullmatch(PLAIN_NAME, self._text.strip()) else []

    def _steps(self) -> Iterator[ChatDelta]:
        while True:
            if self._arguments is None:
                skipped = self._skipped.match(self._text)
                head = self._head.match(self._text, skipped.end() if skipped else 0)
                if head is None:
                    if self._closing and (end := self._closing.search(self._text)):
                        self._text, self.rest = self._text[: end.start()], self._text[end.end() :]
                    return
                self._text = self._text[head.end() :]
                yield self._begin(_unescape_name(head["name"]))
            text, self._text = self._text, ""
            arguments = self._arguments
            if arguments is None:
                return
            yield from self._more(arguments.feed(text))
            if arguments.rest is None:
                return
            self._text = arguments.rest
            self._end_call()

    def _begin(self, name: str) -> ChatDelta:
        form = self._format or CallFormat("")
        style = form.arguments
        if name in self._tools.by_grammar and style.input_opening:
            in_list = form.lead == "[" and not form.end
            self._arguments = InputReader(style.input_opening, form.input_end, in_list=in_list)
        else:
            self._arguments = style.reader(self._tools.schemas.get(name, {}), form.ends)
        self.begun += 1
        return ToolCallDelta(ANY_CHOICE, self._index, "", f"call_{uuid.uuid4().hex[:24]}", name)

    def _more(self, arguments: str) -> list[ChatDelta]:
        return [ToolCallDelta(ANY_CHOICE, self._index, arguments)] if arguments else []

    def _end_call(self) -> None:
        self._arguments = None
        self._index += 1
        self.completed += 1

    def _whole(self, name: str, arguments: str) -> list[ChatDelta]:
        pieces = [self._begin(name), *self._more(arguments)]
        self._end_call()
        return pieces


def _unescape_name(name: str) -> str:
    value = _json_or_none(f'"{name}"')
    return value if isinstance(value, str) else name


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _calls(value: Any) -> Iterator[tuple[str, str]]:
    """Yield names and arguments, as JSON text, of what was parsed as a whole."""
    for item in value if isinstance(value, list) else [value]:
        call = item.get("function", item) if isinstance(item, dict) else None
        name = (call.get("name") or call.get("tool_name")) if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(name, str):
            continue
        arguments = call.get("arguments", call.get("parameters", {}))
        yield name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
