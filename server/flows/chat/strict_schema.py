"""OpenAI's rules for schemas that are marked strict: every object closed, every property required. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

BRANCHES = ("properties", "$defs", "definitions", "patternProperties")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
SINGLES = ("items", "not")
MAX_DEPTH = 64


def find_strict_violation(schema: Mapping[str, Any]) -> str | None:
    """Return OpenAI's error message for the first rule that the schema violates; None for a valid schema."""
    if schema.get("type") != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {schema.get('type')!r}'."
    return next(_violations(schema, ()), None)


def _violations(schema: object, path: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    if len(path) > MAX_DEPTH:
        yield f"In context={path[:3]}..., the schema is nested more than {MAX_DEPTH} levels deep."
        return
    if schema.get("type") == "object" or "properties" in schema:
        yield from _object_violations(schema, path)
    for key in BRANCHES:
        for name, inner in _entries(schema.get(key)):
            yield from _violations(inner, (*path, key, name))
    for key in LISTS:
        branches = schema.get(key)
        for number, inner in enumerate(branches if isinstance(branches, list) else ()):
            yield from _violations(inner, (*path, key, str(number)))
    for key in SINGLES:
        yield from _violations(schema.get(key), (*path, key))


def _object_violations(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"In context={path}, 'additionalProperties' is required to be supplied and to be false."
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    if missing := [name for name, _ in _entries(schema.get("properties")) if name not in required]:
        yield (
            f"In context={path}, 'required' is required to be supplied and to be an array including every key in "
            f"properties. Missing '{missing[0]}'."
        )


def _entries(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []
