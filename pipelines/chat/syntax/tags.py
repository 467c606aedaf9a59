"""Arguments in tags, one pair for each: Qwen3-Coder's and 3.5's, GLM's, MiniMax's, Seed's, DeepSeek's."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelines.chat.syntax.arguments import ArgumentReader, ArgumentStyle, Schema, json_string
from pipelines.chat.syntax.raw_strings import is_bounded, raw_string, raw_string_before
from pipelines.chat.syntax.rules import Rules, quoted
from pipelines.chat.syntax.schemas import (
    MAX_PARTS,
    OF_ONE_TYPE,
    additional_property_schema,
    options_of,
    property_schemas,
    required_of,
    standalone_schema,
    unsupported_keywords,
    values_of_types,
)

PYTHON_WORDS = {"True": True, "False": False, "None": None}
SAYS_STRING = ("true", "string")
ANY_KEY = '/[^<>"\\n]{1,200}/'
KINDS_OF_JSON = ("string", "number", "boolean", "null", "object", "array")
GAP = "[ \\n]{0,4}"  # between tags
GAP_BEHIND = re.compile(GAP)
KINDS = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}  # others are numbers


@dataclass(frozen=True, slots=True)
class TagArguments(ArgumentStyle):
    """Strings stand between the tags as they are, other values as JSON."""

    opening: str  # {key} is the argument's name, {type} that of its value; {string} says whether that is a string
    closing: str
    space: str = ""  # around a value
    input_opening = ""
    has_end = True

    def reader(self, schema: Schema, ends: tuple[str, ...]) -> ArgumentReader:
        """Return a reader that knows by the schema which arguments are strings."""
        return TagReader(self, schema, ends)

    def rule(self, rules: Rules, schema: Schema, end: str = "") -> str:
        """Return the grammar expression of the arguments, in the schema's order, and of the `end` of the call; those
        that are not required may be left out."""
        rules.left_out |= unsupported_keywords(schema)
        required, others = required_of(schema), additional_property_schema(schema)
        rest = Rest(self._prefix, end, "")
        if others is not None:
            rest = replace(rest, more=self._further(rules, others, rest))
        for key, value in reversed(property_schemas(schema).items()):
            one = rules.add(self._tag(rules, key, value, rest))
            if key in required:
                rest = Rest(self._prefix, "", one)
            else:
                rest = replace(rest, more=rules.add(f"{one} | {rest.more}") if rest.more else one)
        return rest.rule(rules)

    def _further(self, rules: Rules, schema: Schema, rest: "Rest") -> str:
        """Return the expression of any number of tags of any name, without the first one's prefix."""

        def tag() -> str:
            return self._tag(rules, "", schema, replace(rest, more=self._further(rules, schema, rest)))

        return rules.value(schema, tag, f"{self._prefix} {rest.end}")

    @property
    def _prefix(self) -> str:
        """Return what a tag begins with, before any name."""
        return self.opening.partition("{")[0]

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return the arguments as one tag for each, on lines of their own where the family has lines."""
        gap = "\n" if self.space or "\n" in self.opening else ""
        return gap + "".join(self._written(key, value) + gap for key, value in arguments.items())

    def _written(self, key: str, value: Any) -> str:
        text = bare(value)
        kind = KINDS.get(type(value), "number")
        return f"{self._opening(key, kind)}{self.space}{text}{self.space}{self.closing}"

    def _opening(self, key: str, kind: str) -> str:
        opening = self.opening.replace("{key}", key).replace("{type}", kind)
        return opening.replace("{string}", str(kind == "string").lower())

    def endings(self, end: str = "") -> tuple[str, ...]:
        """Return what ends a string: its tag, and what follows that."""
        tags = dict.fromkeys((self.space + self.closing, self.closing))
        followed = (f"{tag}{line}{mark}" for mark in (end, self._prefix) for tag in tags for line in ("\n", ""))
        return (*followed, *tags)

    def _tag(self, rules: Rules, key: str, value: Schema, rest: "Rest") -> str:
        """Return the tag of a value without its prefix, and the `rest`; an empty `key` is any. There is one option for
        each type that the value may have where tags name types, and where its strings are not any text."""
        variants, options = _variants(value), options_of(value)
        rules.left_out |= value.keys() & OF_ONE_TYPE if options else set()
        named = "{type}" in self.opening or "{string}" in self.opening
        if not named and not any(kind == "string" and is_bounded(rules, one) for kind, one in variants):
            variants = [("string" if may_be_text(value) else _kind(value), value)]
        return " | ".join(rules.add(self._typed(rules, key, kind, schema, rest)) for kind, schema in variants)

    def _typed(self, rules: Rules, key: str, kind: str, value: Schema, rest: "Rest") -> str:
        _, after = self._opening("{key}", kind).split("{key}")
        lines = " /\\n?/ ".join(rules.literal(line) for line in after.split("\n"))
        opening = f"{quoted(key) or ANY_KEY} {lines}"
        values = values_of(value) or []
        if kind == "string" and not values:
            return f"{opening} ({rest.behind_string(rules, value, self)})"
        text = " | ".join(rules.literal(bare(one)) for one in values) if kind == "string" else rules.json(value)
        closed = f"{rules.literal(self.closing)} {rest.rule(rules)}"
        line = quoted(self.space)
        return f"{opening} ({f'{line} ({text}) {line} | ' if line else ''}{text}) {closed}"


@dataclass(frozen=True, slots=True)
class Rest:
    """What may follow a tag: the `prefix` of another one with `more`, an expression, or the `end` of the call."""

    prefix: str
    end: str  # empty: a required tag is missing
    more: str  # empty: no further tag has a name

    def rule(self, rules: Rules) -> str:
        """Return the expression of it, and of the white space before it."""
        more = f"{rules.literal(self.prefix)} {self.more}" if self.more else ""
        options = [option for option in (more, rules.literal(self.end)) if option]
        return f"/{GAP}/ ({' | '.join(options)})"

    def behind_string(self, rules: Rules, schema: Schema, style: TagArguments) -> str:
        """Return the expression of a string, its closing tag, and this. The tag of a string that a further tag or the
        end does not follow is a part of it, where no mark is a token, which no text has."""
        if any(rules.split(mark)[1] for mark in (style.closing, self.prefix, self.end)):
            line = quoted(style.space)
            if is_bounded(rules, schema):
                return f"{line} {raw_string(rules, schema, style.space + style.closing)} {self.rule(rules)}"
            return f"{f'{line}?' if line else ''} {rules.until(style.closing)} {self.rule(rules)}"
        followers = [(self.prefix, self.more)] if self.more else []
        followers += [(self.end, "")] if self.end else []
        marks = (style.closing, GAP)
        return " | ".join(
            f"({raw_string_before(rules, schema, *marks, mark, style.space)}) {more}" for mark, more in followers
        )


class TagReader(ArgumentReader):
    """Strings are passed on while they come in, other values when their tag closes."""

    def __init__(self, style: TagArguments, schema: Schema, ends: tuple[str, ...]) -> None:
        self._opening = re.compile(r"\s*" + _pattern(style.opening))
        self._style = style
        self._followers = (style.opening.partition("{")[0], *ends[:1])
        self._properties = property_schemas(schema)
        self._others = standalone_schema(schema.get("additionalProperties"), schema)
        self._ends = ends
        self._text = ""
        self._key: str | None = None  # of the value that is open
        self._is_string = self._streams = self._first = self._has_lines = False
        self._begun = ""  # of the object: nothing, a brace, and then commas

    def feed(self, text: str) -> str:
        """Return what is new, as JSON text."""
        self._text += text
        return "".join(self._steps())

    def finish(self, *, closed: bool) -> str:
        """Return the end of the object; a call that was cut short keeps what came."""
        if not closed:
            return ""
        value = self._close(self._text) if self._key is not None else ""
        return value + ("}" if self._begun else "{}")

    def _steps(self) -> Iterator[str]:
        while self.rest is None:
            if self._key is None:
                opened = self._opening.match(self._text)
                if opened is None:
                    if self._text.lstrip().startswith(self._ends):
                        self.rest = self._text.lstrip()
                        yield "}" if self._begun else "{}"
                    return
                self._text = self._text[opened.end() :]
                yield self._open(opened)
            else:
                end, certain = self._end()
                if not certain:
                    yield self._stream(end)
                    return
                value, self._text = self._text[:end], self._text[end + len(self._mark) :]
                yield self._close(value)

    @property
    def _mark(self) -> str:
        """Return the mark that ends the open value: behind a first line's end, it begins a line."""
        begins = self._text.startswith(self._style.space) if self._first else self._has_lines
        return self._style.space * (begins and self._is_string) + self._style.closing

    def _end(self) -> tuple[int, bool]:
        """Return where the mark stands that ends the open value, and whether it does: another tag or the end of the
        call follows it. Without a mark, it may begin where as many characters are left as it has."""
        mark, at = self._mark, self._text.find(self._mark)
        while at >= 0:
            behind = self._text[at + len(mark) :]
            gap = GAP_BEHIND.match(behind)
            follows = behind[gap.end() if gap else 0 :]
            if follows.startswith(self._followers):
                return at, True
            if any(follower.startswith(follows) for follower in self._followers):
                return at, False
            at = self._text.find(mark, at + 1)
        return max(0, len(self._text) - len(self._style.closing)), False

    def _open(self, opened: re.Match[str]) -> str:
        self._key = key = opened["key"]
        schema = self._schema(key)
        said = opened.groupdict().get("string")
        self._is_string = said in SAYS_STRING if said else may_be_text(schema)
        self._streams = said in SAYS_STRING or (not said and schema.get("type") == "string")
        self._first, self._has_lines = True, False  # of the value: nothing is read, it begins behind a line's end
        comma, self._begun = (", " if self._begun else "{"), "{"
        return comma + json_string(key) + ": " + ('"' if self._streams else "")

    def _schema(self, key: str) -> Schema:
        return self._properties.get(key, self._others)

    def _stream(self, end: int) -> str:
        """Return what is certain of an open string, which may end there."""
        if not self._streams:
            return ""
        end = max(0, end - len(self._style.space))
        text, self._text = self._text[:end], self._text[end:]
        return json_string(self._without_space(text))[1:-1]

    def _without_space(self, text: str) -> str:
        if self._first and text:
            self._first, self._has_lines = False, bool(self._style.space) and text.startswith(self._style.space)
            return text.removeprefix(self._style.space)
        return text

    def _close(self, text: str) -> str:
        text, key = self._without_space(text), self._key or ""
        text = text if self._has_lines and self._is_string else text.removesuffix(self._style.space)
        self._key = None
        if self._streams:
            return json_string(text)[1:-1] + '"'
        value = read_value(text, self._schema(key), is_string=self._is_string)
        return json.dumps(value, ensure_ascii=False)


def object_members(rules: Rules, schema: Schema, tag: Callable[[str, Schema], str]) -> list[str]:
    """Return the expressions of an object's members, in the schema's order. Those that are not required may be left
    out; behind them comes any number of those that the schema lets have any name. `tag` makes the expression of a
    member by its name, empty for any, and its schema."""
    rules.left_out |= unsupported_keywords(schema)
    required, others = required_of(schema), additional_property_schema(schema)
    members = [
        f"({tag(key, value)}){'' if key in required else '?'}" for key, value in property_schemas(schema).items()
    ]
    return members if others is None else [*members, f"({tag('', others)})*"]


def read_value(text: str, schema: Schema, *, is_string: bool) -> Any:
    """Return the value that stands between tags: what is no JSON of another type is a string."""
    word = text.strip()
    if listed := [value for value in values_of(schema) or () if word == bare(value)]:
        return listed[0]
    if word in PYTHON_WORDS and not (is_string and schema.get("type") == "string"):
        return PYTHON_WORDS[word]
    try:
        value = json.loads(word)
        json.dumps(value, allow_nan=False)  # NaN, and 1e400, are no JSON
    except ValueError:
        return text
    return text if is_string and not _declares_type(value, schema) else value


def bare(value: Any) -> str:
    """Return a value as it stands between tags."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def may_be_text(schema: Schema) -> bool:
    """Return whether the schema takes strings, or does not say."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return "string" in kinds
    if kinds is not None:
        return bool(kinds == "string")
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    if options:
        return any(may_be_text(option) for option in options if isinstance(option, Mapping)) or True in options
    if (values := values_of(schema)) is not None:
        return any(isinstance(value, str) for value in values)
    return not schema.keys() & {"$ref", "allOf", "properties", "items"}


def values_of(schema: Schema) -> list[Any] | None:
    """Return the values that the schema lists; None if it lists none."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _kind(schema: Schema) -> str:
    """Return the name of a value's type, as tags have it."""
    kinds = schema.get("type") or "object"
    names = [kinds] if isinstance(kinds, str) else [name for name in kinds if name != "null"]
    return "number" if names and names[0] == "integer" else str(next(iter(names), "null"))


def _variants(schema: Schema) -> list[tuple[str, Schema]]:
    """Return the types that a value may have, by their names in tags, and its schema as one of each."""
    found, seen, waiting = list[tuple[str, Schema]](), list[Schema](), [schema]
    while waiting and len(seen) < MAX_PARTS:
        one = waiting.pop(0)
        if one not in seen:  # an option may lead back to itself
            seen.append(one)
            if options := options_of(one):
                waiting = [standalone_schema(option, one) for option in options] + waiting
            else:
                found += _of_each_kind(one)
    return [("number" if kind == "integer" else kind, one) for kind, one in found]


def _of_each_kind(schema: Schema) -> list[tuple[str, Schema]]:
    kinds = schema.get("type")
    if isinstance(kinds, str) or not (kinds or may_be_text(schema) or values_of(schema)):
        return [(kinds or _kind(schema), schema)]
    return [(kind, one) for kind in kinds or KINDS_OF_JSON if (one := _of_kind(schema, kind))]


def _of_kind(schema: Schema, kind: str) -> dict[str, Any] | None:
    """Return the schema of those of its values that are of one type; None if it has none of them."""
    values = values_of(schema)
    if values is None:
        return {**schema, "type": kind}
    found = values_of_types(values, [kind])
    return {"type": kind, "enum": found} if found else None


def _declares_type(value: Any, schema: Schema) -> bool:
    """Return whether a schema that takes strings names the type of this other value, too, or names none for it."""
    if not schema.keys() & {"type", "anyOf", "oneOf"}:
        return isinstance(value, dict | list)
    names = {"NoneType": "null", "bool": "boolean", "int": "integer", "float": "number", "dict": "object"}
    name = names.get(type(value).__name__, "array")
    found = json.dumps([schema.get("type"), schema.get("anyOf"), schema.get("oneOf")])
    return f'"{name}"' in found or (name == "integer" and '"number"' in found)


def _pattern(opening: str) -> str:
    pattern = re.escape(opening).replace(r"\{key\}", r"\s*(?P<key>[^<>\"\n]+?)\s*")
    pattern = pattern.replace(r"\{type\}", r"(?P<string>\w+)")
    return pattern.replace(r"\{string\}", "(?P<string>true|false)").replace("\\\n", r"\s*")
