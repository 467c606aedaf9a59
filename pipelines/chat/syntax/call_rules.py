"""The grammar of tool calls in a family's syntax."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pipelines.chat.syntax.calls import CallFormat
from pipelines.chat.syntax.rules import Rules, escape_lark, non_prefix_regex, quoted

SPACE: Final = "/[ \\n]{0,4}/"
PLACEHOLDERS: Final = {"number": "/[0-9]{1,4}/", "id": "/[a-zA-Z0-9]{9,10}/"}


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called: its parameters, or the name of the grammar of its input."""

    name: str
    schema: Mapping[str, Any]
    grammar: str = ""
    param: str = ""
    unenforced: frozenset[str] = frozenset()  # keywords that are not in the schema any more


@dataclass(frozen=True, slots=True)
class CallRules:
    """The grammar expressions of calls of some tools."""

    rules: Rules
    form: CallFormat
    tools: Sequence[CallableTool]
    several: bool
    left_out: dict[str, frozenset[str]] = field(default_factory=dict)  # by tool: keywords that the syntax does not hold

    def unenforced(self) -> tuple[str, ...]:
        """Return the paths of the keywords that the expressions so far do not hold arguments to."""
        return tuple(
            f"{tool.param}.{keyword} ({tool.name})"
            for tool in self.tools
            for keyword in sorted(tool.unenforced | self.left_out.get(tool.name, frozenset()))
        )

    def required(self) -> str:
        """Return the expression of one call, or of several."""
        if self.form.header:
            headers = [self.rules.literal(self._header(tool)) for tool in self.tools]
            blocks = (self._block(header, tool) for header, tool in zip(headers, self.tools, strict=True))
            return f"{SPACE} {self.rules.add(' | '.join(blocks))}"
        block = self.rules.add(f"{self.rules.literal(self.form.opening)} {self._after_opening()}")
        first = f"{SPACE} {block}" if self.form.opening else block
        if self.form.outer_begin or not self._repeats:
            return first
        return f"{first} ({quoted(self.form.separator)} {block})*"

    def text_with_calls(self, thoughts: str = "") -> str:
        """Return the expression of free text, in which every call that begins is whole and valid. `thoughts` is the
        text that opens thoughts."""
        if not self.form.opening:
            return self._call_or_text(thoughts)
        rules, times = self.rules, "*" if self._repeats else "?"
        before, token, after = rules.split(self.form.opening)
        if token and not before:
            # a marker in quotes is one that the text is about
            marks = " | ".join(rules.literal(mark) for mark in (token, thoughts) if rules.split(mark)[1])
            controls = rules.control_tokens(token, thoughts)
            text = rules.add(f"(PLAIN | QUOTE ({marks})?{f' | {controls}' if controls else ''})*")
            block = rules.add(f"{rules.literal(token + after)} {self._after_opening()}")
            return (
                f"{text} ({block} {text}){times}"
                if self._has_closing_mark
                else f"{text} ({block}{self._further_calls()})?"
            )
        mark = rules.split(self._header(self.tools[0]))[1]
        controls = rules.control_tokens(mark or token, "" if mark else thoughts)
        text = rules.add(f"(ANY? {controls})*") if controls else ""
        if token:
            return self._calls_and_text(
                rules.add(f"{self._ending_in_header(text, self.form.opening)} {self._after_opening()}"), text
            )
        lead = f"[ \\n]*{escape_lark(self.form.lead)}" if self.form.lead else ""
        until = rules.add(f"/(.|\\n)*{escape_lark(self.form.opening)}{lead}/", lazy=True)
        calls = [f"{text} {until} {self._after_opening(self.form.lead)}"]
        if not mark:
            return self._calls_and_text(rules.add(calls[0]), text)
        calls += [self._block(self._ending_in_header(text, self._header(tool)), tool) for tool in self.tools]
        others = rules.add(" | ".join(self._ending_in_header(text, header) for header in (self.form.answer, thoughts)))
        return f"{others}* ({rules.add(' | '.join(calls))} {others}*){times} {text} ANY?"

    def _calls_and_text(self, call: str, text: str) -> str:
        """Return calls with the text before them, and the text behind."""
        if self._has_closing_mark:
            return f"({call}){'*' if self._repeats else '?'} {text} ANY?"
        return f"{call}{self._further_calls()} | {text} ANY?"

    def _header(self, tool: CallableTool) -> str:
        return self.form.header.replace("{name}", tool.name)

    def _ending_in_header(self, text: str, header: str) -> str:
        """Return text that ends in a header."""
        before, mark, after = self.rules.split(header)
        return f"{text} /(.|\\n)*{escape_lark(before)}/ {self.rules.literal(mark + after)}"

    def _block(self, header: str, tool: CallableTool) -> str:
        """Return calls of one tool behind its header."""
        rest = replace(self, tools=[tool])._after_opening()
        return self.rules.add(f"{header} {SPACE} {self.rules.literal(self.form.opening)} {rest}")

    @property
    def _has_closing_mark(self) -> bool:
        """Return whether a mark ends calls: else what comes behind them would be taken for a part of them."""
        return bool(self.form.outer_end or self.form.end)

    def _further_calls(self) -> str:
        """Return further calls behind one, without text between them."""
        mark = self.rules.literal(self.form.begin or self.form.separator.strip())
        return f" ({SPACE} {mark} {self._after_opening()})*" if self._repeats and not self.form.outer_begin else ""

    @property
    def _repeats(self) -> bool:
        ends_inputs = self.form.end or not self.form.separator
        inputs = any(tool.grammar for tool in self.tools)
        return self.several and self.form.repeats and bool(ends_inputs or not inputs)

    def _call_or_text(self, thoughts: str) -> str:
        """Return a call without markers, or text that does not begin as one."""
        rules = self.rules
        if self.form.answer:
            before = f"/(.|\\n)*{escape_lark(self.form.separator)}[ \\n]*"
            heads = [(tool, self.form.head.replace("{name}", tool.name)) for tool in self.tools]
            untils = [(tool, head, rules.add(f"{before}{escape_lark(head)}/", lazy=True)) for tool, head in heads]
            calls = [f"{until} {self._call_to(tool, head)}" for tool, head, until in untils]
            text = f"{rules.literal(self.form.answer)} (({rules.add(' | '.join(calls))}){self._further_calls()} | ANY?)"
            return f"{rules.add(self.required())} | {text}"
        text = rules.add(f"{SPACE} /{non_prefix_regex(self.form.lead)}/ {rules.free()}*")
        controls = rules.control_tokens(thoughts)
        first = rules.add(f"{controls} {rules.free()}*") if controls else text
        return f"{rules.add(self._after_opening())} | {text}? | {first}"

    def _after_opening(self, read: str = "") -> str:
        """Return what follows the first marker, and `read`, which the call or the list of calls begins with."""
        rules, form = self.rules, self.form
        space = "" if read else SPACE
        if not form.outer_begin:
            return f"{space} {self._call(read)}"
        begin = f"{rules.literal(form.begin)} {SPACE}" if form.begin else ""
        one = rules.add(f"{begin} {self._call()}")
        first = f"{begin} {self._call(read)}" if read and read != "[" else one
        gap = "/[ \\n]{0,8}/"
        more = f"(/,?[ \\n]{{0,8}}/ {one})*" if self._repeats else ""
        if form.lead != "[":
            return f"{space} {first} {more} {SPACE} {rules.literal(form.outer_end)}"
        bracket = "" if read else '"["'
        return f'{space} {bracket} {gap} {first} {more} {gap} "]" {SPACE} {rules.literal(form.outer_end)}'

    def _call(self, read: str = "") -> str:
        """Return a call of one of the tools, without its first marker and what was `read` of its head."""
        return self.rules.add(" | ".join(self.rules.add(self._call_to(tool, read)) for tool in self.tools))

    def _call_to(self, tool: CallableTool, read: str) -> str:
        rules, form = self.rules, self.form
        head = self._head(form.head.replace("{name}", tool.name).removeprefix(read))
        if tool.grammar and form.arguments.input_opening:
            return f"{head} {quoted(form.arguments.input_opening)} @{tool.grammar} {rules.literal(form.end)}"
        rules.left_out.clear()
        arguments = form.arguments.rule(rules, tool.schema, form.tail or form.end)
        self.left_out[tool.name] = frozenset(rules.left_out)
        marks = [self._tail(), f"{SPACE} {rules.literal(form.end)}" if form.end else ""]
        behind = [mark for mark in marks if mark][form.arguments.has_end :]
        return " ".join([head, arguments, *behind])

    def _head(self, head: str) -> str:
        """Return a head in which models are free to write spaces or none between the parts of JSON."""
        if self.form.head.startswith('{"'):
            pattern = escape_lark(head).replace(" ", "[ \\n]{0,8}").replace("\\{number\\}", "[0-9]{1,4}")
            pattern = pattern.replace("\\{", "\\{[ \\n]{0,8}")
            return f"/{pattern}/"
        parts = re.split(r"\{(number|id)\}", head)
        return " ".join(PLACEHOLDERS[part] if i % 2 else self.rules.literal(part) for i, part in enumerate(parts))

    def _tail(self) -> str:
        tail = self.form.tail
        if tail == "}":
            return "/[ \\n]{0,8}\\}/"
        if "{id}" in tail:  # which models may leave out
            return '/(, ?"id": ?"[a-zA-Z0-9]{9}")?[ \\n]{0,8}\\}/'
        return self.rules.literal(tail)
