"""Arguments in tags within tags, each behind a token of its own: MiniMax M3's."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pipelines.chat.syntax.arguments import ArgumentReader, ArgumentStyle, Schema
from pipelines.chat.syntax.raw_strings import raw_string
from pipelines.chat.syntax.rules import Rules
from pipelines.chat.syntax.schemas import (
    OF_ONE_TYPE,
    additional_property_schema,
    options_of,
    property_schemas,
    standalone_schema,
)
from pipelines.chat.syntax.tags import bare, may_be_text, object_members, read_value, values_of

MINIMAX: Final = "]<]minimax[>["
ANYTHING: Final = "any_nested"  # the name of its rule
ITEM: Final = "item"  # the tag of an array's values
ANY_TAG: Final = "/<[^<>\\/][^<>]*>/"
ANY_END: Final = "/<\\/[^<>]+>/"
TAG: Final = re.compile(re.escape(MINIMAX) + r"<(/?)([^<>]+)>")


class NestedArguments(ArgumentStyle):
    """Strings and numbers stand between tags as they are, objects and arrays as further tags."""

    input_opening = ""

    def reader(self, schema: Schema, ends: tuple[str, ...]) -> ArgumentReader:
        """Return a reader that waits for the call's end: only the last tag tells an array from an object."""
        return NestedReader(schema, ends[0])

    def rule(self, rules: Rules, schema: Schema, end: str = "") -> str:
        """Return the grammar expression of the arguments, in the schema's order; those that are not required may be
        left out."""
        return _object(rules, schema)

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return the arguments as one tag for each."""
        return "".join(_written(key, value) for key, value in arguments.items())

    def endings(self, end: str = "") -> tuple[str, ...]:
        """Return the beginning of what ends a string."""
        return (f"{MINIMAX}</",)


class NestedReader(ArgumentReader):
    """Reads the arguments of one call when they are whole."""

    def __init__(self, schema: Schema, tail: str) -> None:
        self._schema = schema
        self._tail = tail
        self._text = ""

    def feed(self, text: str) -> str:
        """Add text, and return the arguments once their end has come; an empty text before."""
        self._text += text
        end = self._text.find(self._tail)
        if end < 0:
            return ""
        self.rest, self._text = self._text[end:], self._text[:end]
        return self.finish(closed=True)

    def finish(self, *, closed: bool) -> str:
        """Return the arguments of a call that was closed; an empty text for one that was cut short."""
        tags = {**self._schema, "type": "object"}
        return json.dumps(_value(self._text, tags), ensure_ascii=False) if closed else ""


def _value(text: str, schema: Schema) -> Any:
    """Return what the text between two tags means."""
    tags, kind = list(_tags(text)), schema.get("type")
    if kind == "array" or (tags and kind != "object" and all(name == ITEM for name, _ in tags)):
        return [_value(inner, standalone_schema(schema.get("items"), schema)) for _, inner in tags]
    if kind == "object" or tags:
        properties, others = property_schemas(schema), additional_property_schema(schema) or {}
        return {name: _value(inner, properties.get(name, others)) for name, inner in tags}
    return read_value(text, schema, is_string=bool(schema) and may_be_text(schema))


def _tags(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the outermost tags, and what is in them."""
    name, begin, depth = "", 0, 0
    for tag in TAG.finditer(text):
        closes, found = tag[1], tag[2]
        if not depth and not closes:
            name, begin, depth = found, tag.end(), 1
        elif found == name:
            depth += -1 if closes else 1
            if not depth:
                yield name, text[begin : tag.start()]


def _object(rules: Rules, schema: Schema) -> str:
    return " ".join([*object_members(rules, schema, partial(_tag, rules)), "/[ \\n]{0,2}/"])


def _tag(rules: Rules, name: str, schema: Schema) -> str:
    """Return a tag with a value, of any name if none is given."""
    if options := options_of(schema):
        rules.left_out |= schema.keys() & OF_ONE_TYPE
        each = [standalone_schema(option, schema) for option in options]
        return rules.value(schema, lambda: _one_of(rules, name, each), kind=f"tag {name}")
    kind = schema.get("type")
    if isinstance(kind, list):
        return _one_of(rules, name, [{**schema, "type": one} for one in kind])
    mark = rules.literal(MINIMAX)
    opening = rules.literal(f"{MINIMAX}<{name}>") if name else f"{mark} {ANY_TAG}"
    closing = rules.literal(f"{MINIMAX}</{name}>") if name else f"{mark} {ANY_END}"
    if values := values_of(schema):
        return f"{opening} ({' | '.join(rules.literal(bare(value)) for value in values)}) {closing}"
    if kind == "object":
        return f"{opening} {rules.value(schema, lambda: _object(rules, schema))} {closing}"
    if kind == "array":
        rules.left_out |= schema.keys() & {"minItems", "maxItems", "prefixItems"}
        items = standalone_schema(schema.get("items"), schema)
        return f"{opening} {rules.value(items, lambda: _tag(rules, ITEM, items), kind='items')}* {closing}"
    if not schema.keys() & {"type", "enum"} and may_be_text(schema):
        return f"{opening} {_any_content(rules)} {closing}"
    if may_be_text(schema) and "enum" not in schema:
        text = raw_string(rules, schema, f"{MINIMAX}</{name}>" if name else MINIMAX)
        return f"{opening} {text} {'' if name else ANY_END}"
    return f"{opening} {rules.json(schema)} {closing}"


def _one_of(rules: Rules, name: str, options: Sequence[Schema]) -> str:
    return f"({' | '.join(rules.add(_tag(rules, name, one)) for one in options)})"


def _any_content(rules: Rules) -> str:
    """Return the expression of text and of tags with anything in them."""
    mark = rules.literal(MINIMAX)
    if not any(line.startswith(f"{ANYTHING}: ") for line in rules.lines):
        rules.lines.append(f"{ANYTHING}: ({rules.free(MINIMAX)} | {mark} {ANY_TAG} {ANYTHING} {mark} {ANY_END})*")
    return ANYTHING


def _written(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        inner = NestedArguments().written(value)
    elif isinstance(value, list):
        inner = "".join(_written(ITEM, item) for item in value)
    else:
        inner = bare(value)
    return f"{MINIMAX}<{name}>{inner}{MINIMAX}</{name}>"
