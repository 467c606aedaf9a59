"""Lark rules for llguidance, while they are collected.

A marker such as `<tool_call>` may be a token of its own, which no regular expression matches, or plain text. `Rules`
knows the tokenizer, and writes each as the grammar library needs it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from llguidance import LLMatcher

from pipelines.chat.syntax.tokens import TokenTable

CALL_STYLE: Final = {  # as models write JSON: with spaces or without, or indented; but not endless white space
    "whitespace_flexible": True,
    "whitespace_pattern": "[ \\n]{0,12}",
    "item_separator": ",",
    "key_separator": ":",
    "lenient": True,  # what can't be enforced of a tool's schema is known by now, and named
    "coerce_one_of": True,
}
CLOSED: Final = frozenset({"type", "properties", "additionalProperties", "required", "description", "title"})


class Rules:
    """The rules of one grammar. Names are a letter and a number: r of rules, T of terminals, v of values."""

    def __init__(self, table: TokenTable, max_string: int | None) -> None:
        self.max_string = max_string  # characters of a string that a schema does not bound
        self.left_out = set[str]()  # the keywords of schemas that no rule holds a value to
        self._table = table
        names = sorted(table.control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names))) if names else re.compile(r"(?!)")
        self._rules: dict[str, str] = {}  # body -> name
        self._terminals: dict[str, str] = {}  # body -> name
        self._values: dict[str, str] = {}  # schema -> name
        self._left_out_of: dict[str, set[str]] = {}  # schema -> keywords
        self.lines = ["PLAIN: /[^`'\"]+/", "QUOTE: /[`'\"]/", "ANY: /(.|\\n)+/"]

    def add(self, body: str, *, lazy: bool = False) -> str:
        """Add a rule with this body to the grammar, and return its name."""
        key = f"[lazy]: {body}" if lazy else f": {body}"
        if key not in self._rules:
            self._rules[key] = f"r{len(self._rules)}"
            self.lines.append(self._rules[key] + key)
        return self._rules[key]

    def value(self, schema: Mapping[str, Any], body: Callable[[], str], kind: str = "") -> str:
        """Return the name of the rule of a schema's values. Its `body` is made once, and may lead back to the schema:
        those that contain themselves are as deep as the model writes them. `kind` tells several rules of a schema
        apart."""
        key = f"{kind} {json.dumps(schema)}"
        if key in self._values:
            self.left_out |= self._left_out_of.get(key, set())
            return self._values[key]
        name = self._values[key] = f"v{len(self._values)}"
        before, self.left_out = self.left_out, set()
        self.lines.append(f"{name}: {body()}")
        self._left_out_of[key] = self.left_out
        self.left_out = before | self.left_out
        return name

    def terminal(self, body: str) -> str:
        """Add a terminal with this body to the grammar, and return its name."""
        if body not in self._terminals:
            self._terminals[body] = f"T{len(self._terminals)}"
            self.lines.append(f"{self._terminals[body]}: {body}")
        return self._terminals[body]

    def takes(self, body: str) -> bool:
        """Return whether the library takes a terminal with this body, such as a regular expression of a caller's."""
        return not LLMatcher.validate_grammar(f"start: T\nT: {body}", self._table.grammar)

    def literal(self, text: str) -> str:
        """Return the expression of a text, in which control tokens are tokens."""
        pieces, end = [], 0
        for match in self._control.finditer(text):
            pieces += [quoted(text[end : match.start()]), f"<[{self._table.control_tokens[match[0]]}]>"]
            end = match.end()
        return " ".join(piece for piece in [*pieces, quoted(text[end:])] if piece)

    def ends(self, text: str) -> bool:
        """Return whether the text is a token that ends an answer."""
        return self._table.control_tokens.get(text) in self._table.eos_ids

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of a JSON value inside a call."""
        if schema.get("additionalProperties") is False and not schema.get("properties") and schema.keys() <= CLOSED:
            return '"{}"'
        return f"%json {json.dumps({**schema, 'x-guidance': CALL_STYLE}, ensure_ascii=False)}"

    def until(self, end: str) -> str:
        """Return the expression of any text up to and with the first `end`."""
        before, token, after = self.split(end)
        if token and not before:
            return f"{self.free(token)}* {self.literal(end)}"
        others = self.control_tokens(token)
        text = f"(ANY? {others})* " if others else ""
        last = self.add(f"/(.|\\n)*{escape_lark(before)}/", lazy=not token)
        return f"{text}{last} {self.literal(token + after)}"

    def free(self, *excluded: str) -> str:
        """Return the expression of some text: characters, or one control token that is not excluded."""
        others = self.control_tokens(*excluded)
        return self.add(f"PLAIN | QUOTE | {others}") if others else self.add("PLAIN | QUOTE")

    def control_tokens(self, *excluded: str) -> str:
        """Return the expression of one control token that is not excluded and ends no answer; empty for none."""
        taken = {self._table.control_tokens[text] for text in excluded if text in self._table.control_tokens}
        others = sorted(set(self._table.control_tokens.values()) - taken - self._table.eos_ids)
        return f"<[{','.join(_ranges(others))}]>" if others else ""

    def split(self, text: str) -> tuple[str, str, str]:
        """Return what comes before the first control token, the token, and what follows it."""
        match = self._control.search(text)
        return (text[: match.start()], match[0], text[match.end() :]) if match else (text, "", "")


def quoted(text: str) -> str:
    """Return the text as a Lark string; empty for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def escape_lark(text: str) -> str:
    """Return the text as a part of a Lark regular expression."""
    return re.sub(r"([\\^$.|?*+()\[\]{}/&~\-])", r"\\\1", text).replace("\n", "\\n")


def non_prefix_regex(lead: str) -> str:
    """Return a regular expression of the shortest texts that are no beginning of `lead`, nor white space.

    Space may follow an opening brace.
    """
    space = "[ \\n]{0,8}"
    options = [f"[^{escape_lark(lead[0])} \\n]"]
    for i in range(1, len(lead)):
        before = escape_lark(lead[:i]).replace("\\{", "\\{" + space, 1)
        other = " \\n" if lead[i - 1] == "{" else ""
        options.append(f"{before}[^{escape_lark(lead[i])}{other}]")
    return "|".join(options)


def _ranges(numbers: Iterable[int]) -> list[str]:
    """Return sorted numbers as ranges: 1-3, 7-7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{first}-{last}" for first, last in found]
