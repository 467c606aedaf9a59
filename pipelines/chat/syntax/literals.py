"""Arguments as literals of another notation: Python's, of Llama 4 and LFM2, and Gemma 4's.

The JSON of a literal differs from it in quotes, in unquoted keys, and in three words.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipelines.chat.syntax.arguments import ArgumentReader, ArgumentStyle, Schema, json_string
from pipelines.chat.syntax.rules import Rules, quoted

WORDS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
OPENING: Final = {"(": "[", "[": "[", "{": "{"}
CLOSING: Final = {")": "]", "]": "]", "}": "}"}


@dataclass(frozen=True, slots=True)
class PythonArguments(ArgumentStyle):
    """Keyword arguments behind an opening parenthesis, which is a part of the head."""

    input_opening = "input="

    def reader(self, schema: Schema, tail: str) -> ArgumentReader:
        """Return a reader that gives arguments without a name the schema's names."""
        return LiteralReader(("'", '"'), list(schema.get("properties") or {}), opened=True)

    def rule(self, rules: Rules, schema: Schema) -> str:
        """Return the arguments in the schema's order."""
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        values = {key: f'"{key}=" {self._value(rules, value)}' for key, value in properties.items()}
        return f'{_listed(rules, values, required)} ")"'

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return keyword arguments and the closing parenthesis."""
        return ", ".join(f"{key}={_python(value)}" for key, value in arguments.items()) + ")"

    def _value(self, rules: Rules, schema: Schema) -> str:
        if schema.get("type") == "boolean":
            return '("True" | "False")'
        single = " | /'([^'\\\\\\n]|\\\\.)*'/" if schema.get("type") == "string" and "enum" not in schema else ""
        return f"({rules.json(schema)}{single})"


@dataclass(frozen=True, slots=True)
class GemmaArguments(ArgumentStyle):
    """Gemma 4's: keys without quotes, and strings between tokens of their own."""

    quote: str = '<|"|>'
    beginning = r"\{"
    input_opening = "{input:"

    def reader(self, schema: Schema, tail: str) -> ArgumentReader:
        """Return a reader of the object in braces."""
        return LiteralReader((self.quote,), [], opened=False)

    def rule(self, rules: Rules, schema: Schema) -> str:
        """Return the object, with its properties in the schema's order."""
        return self._object(rules, schema, schema)

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return the object in braces."""
        return self._literal(arguments)

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._literal(part)}" for key, part in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(self._literal, value))}]"
        return json.dumps(value)

    def endings(self) -> tuple[str, ...]:
        """Return what ends a string."""
        return (self.quote,)

    def _object(self, rules: Rules, schema: Schema, root: Schema) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return '"{" "}"' if schema is root and "properties" in schema else self._any(rules)
        values = {key: f"{quoted(f'{key}:')} {self._value(rules, value, root)}" for key, value in properties.items()}
        return f'"{{" {_listed(rules, values, schema.get("required") or [])} "}}"'

    def _value(self, rules: Rules, schema: Any, root: Schema) -> str:
        if not isinstance(schema, Mapping):
            return self._any(rules)
        if enum := schema.get("enum"):
            return f"({' | '.join(self._constant(rules, option) for option in enum)})"
        match schema.get("type"):
            case "string":
                return self._string(rules)
            case "object":
                return self._object(rules, schema, root)
            case "array":
                item = rules.add(self._value(rules, schema.get("items", {}), root))
                return f'"[" ({item} ("," {item})*)? "]"'
            case "integer" | "number" | "boolean" | "null":
                return rules.json(schema)
        return self._any(rules)

    def _constant(self, rules: Rules, value: Any) -> str:
        if isinstance(value, str):
            return f"{rules.literal(self.quote)} {rules.literal(value)} {rules.literal(self.quote)}"
        return rules.json({"const": value})

    def _string(self, rules: Rules) -> str:
        return rules.add(f"{rules.literal(self.quote)} {rules.until(self.quote)}")

    def _any(self, rules: Rules) -> str:
        """Return the expression of any value, nested without a bound."""
        if "any_value: " not in "\n".join(rules.lines):
            scalar = rules.json({"type": ["number", "boolean", "null"]})
            rules.lines += [
                f"any_value: {self._string(rules)} | any_scalar | any_object | any_array",
                f"any_scalar: {scalar}",
                'any_object: "{" (any_pair ("," any_pair)*)? "}"',
                "any_pair: /[A-Za-z_][A-Za-z0-9_]*:/ any_value",
                'any_array: "[" (any_value ("," any_value)*)? "]"',
            ]
        return "any_value"


def _python(value: Any) -> str:
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json_string(key)}: {_python(part)}" for key, part in value.items()) + "}"
    return f"[{', '.join(map(_python, value))}]" if isinstance(value, list) else repr(value)


def _listed(rules: Rules, values: dict[str, str], required: list[str]) -> str:
    """Return the values in their order with commas between them, whichever of those that are not required come."""
    rest = ""  # what may follow when something came before
    first = ""  # the same when nothing came
    for key, value in reversed(values.items()):
        name = rules.add(value)
        if key in required:
            first, rest = rules.add(f"{name} {rest}"), rules.add(f"/, ?/ {name} {rest}")
        else:
            began = f"{name} {rest}"
            first = rules.add(f"{began} | {first}" if first else f"({began})?")
            rest = rules.add(f"(/, ?/ {name})? {rest}")
    return first


class LiteralReader(ArgumentReader):
    """Turns a literal into JSON, character by character."""

    def __init__(self, quotes: tuple[str, ...], names: list[str], *, opened: bool) -> None:
        self._quotes = quotes
        self._names = names  # of arguments without a name, in their order
        self._python = opened
        self._depth = 1 if opened else 0
        self._text = ""  # that was not read yet
        self._quote = ""  # of the open string
        self._word = ""
        self._position = 0  # of the argument
        self._named = False  # whether this argument's name came
        self._began = False

    def feed(self, text: str) -> str:
        """Return what is new, as JSON text."""
        self._text += text
        output = "" if self._began or not self._python else "{"
        self._began = True
        while self._text and self.rest is None:
            step = self._in_string() if self._quote else self._outside()
            if step is None:
                break
            output += step
        return output

    def _in_string(self) -> str | None:
        quote = self._quote
        if self._text.startswith(quote):
            self._text, self._quote = self._text[len(quote) :], ""
            return '"'
        if quote.startswith(self._text):  # what may become the closing quote
            return None
        if self._python and self._text[0] == "\\":
            return self._escape()
        character, self._text = self._text[0], self._text[1:]
        return json_string(character)[1:-1]

    def _escape(self) -> str | None:
        if len(self._text) < 2:
            return None
        character, self._text = self._text[1], self._text[2:]
        if character in 'nrtbfu"\\/':
            return "\\" + character
        return character if character == "'" else json_string("\\" + character)[1:-1]

    def _outside(self) -> str | None:
        for quote in self._quotes:
            if self._text.startswith(quote):
                self._text, self._quote = self._text[len(quote) :], quote
                return self._ended_word() + self._name() + '"'
            if len(quote) > 1 and quote.startswith(self._text):
                return None
        character, self._text = self._text[0], self._text[1:]
        if character.isalnum() or character in "_.-+":
            self._word += character
            return ""
        return self._punctuation(character)

    def _punctuation(self, character: str) -> str:
        if character in "=:" and self._word:
            key, self._word = self._word, ""
            self._named = self._named or self._depth == 1
            return json_string(key) + ": "
        value = self._ended_word()
        if character in OPENING:
            value += self._name() if self._depth == 1 else ""
            self._depth += 1
            return value + OPENING[character]
        if character in CLOSING:
            self._depth -= 1
            if not self._depth:
                self.rest, self._text = self._text, ""
                return value + "}"
            return value + CLOSING[character]
        if character == "," and self._depth == 1:
            self._position, self._named = self._position + 1, False
        return value + {",": ", ", ":": ": "}.get(character, "")

    def _ended_word(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        known = WORDS.get(word) or (word if NUMBER.fullmatch(word) else json_string(word))
        return self._name() + known

    def _name(self) -> str:
        """Return the name of an argument that has none of its own."""
        if not self._python or self._named or self._depth != 1 or self._position >= len(self._names):
            return ""
        self._named = True
        return json_string(self._names[self._position]) + ": "
