"""Arguments as literals of another notation: Python's, of Llama 4 and LFM2, and Gemma 4's."""

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipelines.chat.syntax.arguments import ArgumentReader, ArgumentStyle, Schema, json_string
from pipelines.chat.syntax.literal_reader import LiteralReader
from pipelines.chat.syntax.raw_strings import raw_string
from pipelines.chat.syntax.rules import Rules, quoted
from pipelines.chat.syntax.schemas import (
    ANNOTATIONS,
    COUNTED,
    DEFINITIONS,
    OF_ONE_TYPE,
    additional_property_schema,
    options_of,
    property_schemas,
    required_of,
    standalone_schema,
    unsupported_keywords,
)
from pipelines.chat.syntax.tags import values_of

# Keywords that only the grammar of JSON can hold a value to
ONLY_JSON: Final = COUNTED | {"const", "allOf", "$ref", "prefixItems", "minItems", "maxItems"}
DOUBLE: Final = '"([^"\\\\\\n]|\\\\.)*"'
SINGLE: Final = "'([^'\\\\\\n]|\\\\.)*'"


class LiteralArguments(ArgumentStyle):
    """Values that nest as those of JSON do, in a notation of their own."""

    any_value: str  # the name of the rule of any value
    comma: str
    any_key: str  # the regular expression of a key

    def _object(self, rules: Rules, schema: Schema) -> str:
        rules.left_out |= unsupported_keywords(schema)
        properties, others = property_schemas(schema), additional_property_schema(schema)
        if not properties and others == {}:
            return f"{self._any(rules)}_object"
        values = {key: f"{self._key(key)} {self._value(rules, value)}" for key, value in properties.items()}
        other = "" if others is None else f"{self.any_key} {self._value(rules, others)}"
        return f'"{{" {_listed(rules, values, required_of(schema), other)} "}}"'

    def _value(self, rules: Rules, schema: Schema) -> str:
        if options := options_of(schema):
            rules.left_out |= schema.keys() & OF_ONE_TYPE
            return rules.value(schema, lambda: self._either(rules, [standalone_schema(one, schema) for one in options]))
        if isinstance(kinds := schema.get("type"), list):
            return self._either(rules, [{**schema, "type": kind} for kind in kinds])
        if values := values_of(schema):
            return f"({' | '.join(self._constant(rules, value) for value in values)})"
        match kinds:
            case "string":
                return self._string(rules, schema)
            case "object":
                return rules.value(schema, lambda: self._object(rules, schema))
            case "array":
                return rules.value(schema, lambda: self._array(rules, schema))
            case "integer" | "number":
                return rules.json(schema)
            case "boolean":
                return self._boolean()
            case "null":
                return self._word(None)
        rules.left_out |= schema.keys() - ANNOTATIONS - set(DEFINITIONS)
        return self._any(rules)

    def _either(self, rules: Rules, options: Sequence[Schema]) -> str:
        return f"({' | '.join(rules.add(self._value(rules, one)) for one in options)})"

    def _array(self, rules: Rules, schema: Schema) -> str:
        rules.left_out |= schema.keys() & {"prefixItems"}
        item = rules.add(self._value(rules, standalone_schema(schema.get("items"), schema)))
        return f'"[" {self._items(item, schema)} "]"'

    def _items(self, item: str, schema: Schema) -> str:
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most == 0:
            return ""
        further = "" if most is None else max(int(most), least) - 1
        more = "" if further == 0 else f"({self.comma} {item}){{{max(0, least - 1)},{further}}}"
        return f"{item} {more}" if least else f"({item} {more})?"

    def _constant(self, rules: Rules, value: Any) -> str:
        if isinstance(value, str):
            return self._text(rules, value)
        return self._word(value) if isinstance(value, bool | None) else rules.json({"const": value})

    def _boolean(self) -> str:
        return f"({self._word(True)} | {self._word(False)})"

    def _any(self, rules: Rules) -> str:
        """Return the expression of any value, nested without a bound."""
        name, comma = self.any_value, self.comma
        if f"{name}: " not in "\n".join(rules.lines):
            scalar = f"{rules.json({'type': 'number'})} | {self._boolean()} | {self._word(None)}"
            rules.lines += [
                f"{name}: {self._string(rules, {'type': 'string'})} | {name}_scalar | {name}_object | {name}_array",
                f"{name}_scalar: {scalar}",
                f'{name}_object: "{{" ({name}_pair ({comma} {name}_pair)*)? "}}"',
                f"{name}_pair: {self.any_key} {name}",
                f'{name}_array: "[" ({name} ({comma} {name})*)? "]"',
            ]
        return name

    @abstractmethod
    def _key(self, key: str) -> str:
        """Return the expression of a key, with the colon."""

    @abstractmethod
    def _string(self, rules: Rules, schema: Schema) -> str:
        """Return the expression of a string."""

    @abstractmethod
    def _text(self, rules: Rules, text: str) -> str:
        """Return the expression of this very string."""

    @abstractmethod
    def _word(self, value: bool | None) -> str:
        """Return the expression of this boolean, or of null."""


@dataclass(frozen=True, slots=True)
class PythonArguments(LiteralArguments):
    """Keyword arguments behind an opening parenthesis, which is a part of the head."""

    input_opening = "input="
    any_value = "any_python"
    comma = "/, ?/"
    any_key = f"/({DOUBLE}|{SINGLE}): ?/"

    def reader(self, schema: Schema, ends: tuple[str, ...]) -> ArgumentReader:
        """Return a reader that gives arguments without a name the schema's names."""
        return LiteralReader(("'", '"'), list(property_schemas(schema)), opened=True)

    def rule(self, rules: Rules, schema: Schema, end: str = "") -> str:
        """Return the grammar expression of the arguments, in the schema's order."""
        rules.left_out |= unsupported_keywords(schema)
        values = {key: f'"{key}=" {self._value(rules, value)}' for key, value in property_schemas(schema).items()}
        others = additional_property_schema(schema)
        other = "" if others is None else f"/[A-Za-z_][A-Za-z0-9_]*=/ {self._value(rules, others)}"
        return f'{_listed(rules, values, required_of(schema), other)} ")"'

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return keyword arguments and the closing parenthesis."""
        return ", ".join(f"{key}={_python(value)}" for key, value in arguments.items()) + ")"

    def _value(self, rules: Rules, schema: Schema) -> str:
        if schema.keys() & ONLY_JSON or isinstance(schema.get("additionalProperties"), Mapping):
            return rules.json(schema)
        return LiteralArguments._value(self, rules, schema)

    def _key(self, key: str) -> str:
        return f"({quoted(json_string(key))} | {quoted(repr(key))}) /: ?/"

    def _string(self, rules: Rules, schema: Schema) -> str:
        if schema.keys() & {"pattern", "format", "minLength"} or schema.get("maxLength") != rules.max_string:
            return rules.json(schema)
        return rules.add(f"{rules.json(schema)} | /{SINGLE}/")

    def _text(self, rules: Rules, text: str) -> str:
        return rules.add(f"{quoted(json_string(text))} | {quoted(repr(text))}")

    def _word(self, value: bool | None) -> str:
        return f"({quoted(repr(value))} | {quoted(json.dumps(value))})"


@dataclass(frozen=True, slots=True)
class GemmaArguments(LiteralArguments):
    """Gemma 4's: keys without quotes, and strings between tokens of their own."""

    quote: str = '<|"|>'
    beginning = r"\{"
    input_opening = "{input:"
    any_value = "any_value"
    comma = '","'
    any_key = "/[^ ()\\[\\]{}=:,<>|\"'\\n][^()\\[\\]{}=:,<>|\"'\\n]*:/"

    def reader(self, schema: Schema, ends: tuple[str, ...]) -> ArgumentReader:
        """Return a reader of the object in braces."""
        return LiteralReader((self.quote,), [], opened=False)

    def rule(self, rules: Rules, schema: Schema, end: str = "") -> str:
        """Return the grammar expression of the object, with its properties in the schema's order."""
        return self._object(rules, schema)

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

    def endings(self, end: str = "") -> tuple[str, ...]:
        """Return what ends a string."""
        return (self.quote,)

    def _key(self, key: str) -> str:
        return quoted(f"{key}:")

    def _string(self, rules: Rules, schema: Schema) -> str:
        return rules.add(f"{rules.literal(self.quote)} {raw_string(rules, schema, self.quote)}")

    def _text(self, rules: Rules, text: str) -> str:
        return f"{rules.literal(self.quote)} {rules.literal(text)} {rules.literal(self.quote)}"

    def _word(self, value: bool | None) -> str:
        return quoted(json.dumps(value))


def _python(value: Any) -> str:
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json_string(key)}: {_python(part)}" for key, part in value.items()) + "}"
    return f"[{', '.join(map(_python, value))}]" if isinstance(value, list) else repr(value)


def _listed(rules: Rules, values: dict[str, str], required: Collection[str], other: str) -> str:
    """Return the values in their order with commas between them, whichever of those that are not required come, and
    behind them any number of an `other` one, if there is one."""
    rest = f"(/, ?/ {rules.add(other)})*" if other else ""  # what may follow when something came before
    first = f"({rules.add(other)} {rest})?" if other else ""  # the same when nothing came
    for key, value in reversed(values.items()):
        name = rules.add(value)
        if key in required:
            first, rest = rules.add(f"{name} {rest}"), rules.add(f"/, ?/ {name} {rest}")
        else:
            began = f"{name} {rest}"
            first = rules.add(f"{began} | {first}" if first else f"({began})?")
            rest = rules.add(f"(/, ?/ {name})? {rest}")
    return first
