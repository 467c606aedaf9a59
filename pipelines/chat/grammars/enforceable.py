"""Schemas of tools as far as they can be enforced: what a schema asks for beyond that is left out and named.

A client can't change the schemas of an MCP server, and one tool of forty must not stop an agent.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llguidance import LLMatcher

from pipelines.chat.syntax.schemas import DEFINITIONS, NULLABLE, Schema, map_subschemas, values_of_types
from pipelines.chat.syntax.tokens import TokenTable

LENIENT: Final = {"lenient": True, "coerce_one_of": True}  # the library's: it warns of a keyword in place of failing
KINDS: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
UNIMPLEMENTED: Final = re.compile(r"Unimplemented keys: (\[.*\])")
WIDEST: Final = {"type": "object", "additionalProperties": True}


def enforceable(table: TokenTable, schema: Mapping[str, Any]) -> tuple[Schema, tuple[str, ...]]:
    """Return the schema without what can't be enforced, and the keywords that are not."""
    plain = map_subschemas(schema, _without_nothing)
    if (warnings := _warnings(table, map_subschemas(plain, _all_required))) is not None:
        return plain, _keywords(warnings)
    dropped: set[str] = set()

    def drop(one: Schema) -> Schema:
        for keyword in ("pattern", "$ref"):
            alone = {**plain, "properties": {"a": {"type": "string", keyword: one.get(keyword)}}}
            if keyword in one and _warnings(table, alone) is None:
                one = {name: value for name, value in one.items() if name != keyword}
                dropped.add(keyword)
        return one

    def leave_out(one: Schema) -> Schema:
        """Return the schema without properties that no value fits."""
        required, properties = one.get("required"), one.get("properties")
        if not isinstance(properties, Mapping):
            return one
        kept = required if isinstance(required, list) else ()
        fits = {name: part for name, part in properties.items() if name in kept or _fits(table, part, plain)}
        return {**one, "properties": fits}

    loose = map_subschemas(map_subschemas(plain, drop), leave_out)
    warnings = _warnings(table, loose)
    if warnings is None:
        return dict(WIDEST), ("schema",)
    return loose, tuple(sorted({*dropped, *_keywords(warnings)}))


def _all_required(schema: Schema) -> Schema:
    """Return the schema with all properties required: the grammar library says nothing of others that no value fits."""
    properties = schema.get("properties")
    return {**schema, "required": list(properties)} if isinstance(properties, Mapping) else schema


def _fits(table: TokenTable, part: Any, root: Schema) -> bool:
    """Return whether a property of this schema can have a value."""
    named = {key: root[key] for key in DEFINITIONS if key in root}
    return _warnings(table, {**named, **_all_required({"type": "object", "properties": {"a": part}})}) is not None


def _warnings(table: TokenTable, schema: Schema) -> list[str] | None:
    """Return what the grammar library does not enforce of the schema; None if it does not take it at all."""
    rule = f"start: %json {json.dumps({**schema, 'x-guidance': LENIENT}, ensure_ascii=False)}"
    grammar = json.dumps({"grammars": [{"lark_grammar": rule}]})
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, table.grammar)
    return None if failed else list(messages)


def _keywords(warnings: list[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for warning in warnings:
        if keys := UNIMPLEMENTED.search(warning):
            found.update(json.loads(keys[1]))
        else:
            found.add("oneOf" if warning.startswith("oneOf") else "format")
    return tuple(sorted(found))


def _without_nothing(schema: Schema) -> Schema:
    """Return the schema without keywords that are null, as serialisers of other languages write them, types that there
    are not, and those that no value of its enum has."""
    present = {name: value for name, value in schema.items() if value is not None or name in NULLABLE}
    kinds = present.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list):
        known = [kind for kind in kinds if kind in KINDS]
        values = present.get("enum")
        if not known or (values and isinstance(values, list) and not values_of_types(values, known)):
            del present["type"]
        elif known != kinds:
            present["type"] = known
    return present
