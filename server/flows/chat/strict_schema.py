"""OpenAI's rules for schemas that are marked strict: every object closed, every property required. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

BRANCHES = ("properties", "$defs", "definitions", "patternProperties")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
SINGLES = ("items", "not")
MAX_DEPTH = 64


def strict_fault(schema: Mapping[str, Any]) -> str | None:
    """The first rule that the schema breaks, in OpenAI's words; None for a good one."""
    if schema.get("type") != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {schema.get('type')!r}'."
    return next(_faults(schema, ()), None)


def _faults(schema: object, where: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    if len(where) > MAX_DEPTH:
        yield f"In context={where[:3]}..., the schema is nested more than {MAX_DEPTH} levels deep."
        return
    if schema.get("type") == "object" or "properties" in schema:
        yield from _object_faults(schema, where)
    for key in BRANCHES:
        for name, inner in _items(schema.get(key)):
            yield from _faults(inner, (*where, key, name))
    for key in LISTS:
        branches = schema.get(key)
        for number, inner in enumerate(branches if isinstance(branches, list) else ()):
            yield from _faults(inner, (*where, key, str(number)))
    for key in SINGLES:
        yield from _faults(schema.get(key), (*where, key))


def _object_faults(schema: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"In context={where}, 'additionalProperties' is required to be supplied and to be false."
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []
    if missing := [name for name, _ in _items(schema.get("properties")) if name not in required]:
        yield (
            f"In context={where}, 'required' is required to be supplied and to be an array including every key in "
            f"properties. Missing '{missing[0]}'."
        )


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []
