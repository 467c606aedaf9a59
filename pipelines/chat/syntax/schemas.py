"""Schemas as they are enforced: tighter than JSON Schema reads them, since weak models invent keys.

An object that names its properties has no others, a tool without parameters takes none, and a catalog file may bound
strings without a bound of their own. Bounds of a schema's own stay as they are. Pure.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

DEFINITIONS = ("$defs", "definitions")
MAPS = ("properties", "patternProperties", *DEFINITIONS)
COMBINING = ("anyOf", "oneOf", "allOf")
LISTS = (*COMBINING, "prefixItems")
SINGLES = ("items", "additionalProperties")
OPEN = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
COMBINED = frozenset({"$ref", "anyOf", "oneOf", "allOf", "if"})  # beside `properties`: their properties count too
COUNTED = frozenset({"patternProperties", "minProperties", "maxProperties"})
OF_ONE_TYPE = COUNTED | {"properties", "required", "items", "pattern", "minLength", "maxLength", "minimum", "maximum"}
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
NULLABLE = frozenset({"const", "default"})  # null is a value there, and no absence
BOUNDED = frozenset({"maxLength", "pattern", "format", "enum", "const"})

KINDS = {str: "string", bool: "boolean", type(None): "null", float: "number", dict: "object"}

MAX_REFERENCES = 8  # from one to the next: a circle has no end
MAX_PARTS = 64  # that one schema combines

Schema = dict[str, Any]


def tighten(schema: Mapping[str, Any], max_string: int | None) -> Schema:
    """Return the schema, tightened as the module's docstring describes. `max_string` bounds free strings, in
    characters; None leaves them free."""
    combined: list[Schema] = []

    def look(one: Schema) -> Schema:
        combined.extend([one] if _combines_schemas(one) else [])
        return one

    def tight(one: Schema) -> Schema:
        if not combined and _names_all(one):
            one["additionalProperties"] = False
        if max_string is not None and _is_free_string(one):
            one["maxLength"] = max(max_string, one.get("minLength", 0))
        return one

    changed: Schema = map_subschemas(map_subschemas(schema, look), tight)
    return changed


def tighten_parameters(schema: Mapping[str, Any], max_string: int | None) -> Schema:
    """Return the schema of a tool's parameters, tightened as `tighten` does: a tool without parameters takes none."""
    tight = tighten(schema, max_string)
    if not schema.get("properties") and not schema.keys() & (OPEN | COMBINED) and not schema.get("required"):
        tight["additionalProperties"] = False
    return tight


def _combines_schemas(schema: Mapping[str, Any]) -> bool:
    """Return whether its objects have properties of several schemas, so that closing one would forbid those of
    another."""
    return "allOf" in schema or ("properties" in schema and bool(schema.keys() & COMBINED))


def map_subschemas(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return the schema with `change` made to it and to every schema in it, the outer ones first."""
    if not isinstance(schema, Mapping):
        return schema
    new = change(dict(schema))
    for key in MAPS:
        if isinstance(inner := new.get(key), Mapping):
            new[key] = {name: map_subschemas(part, change) for name, part in inner.items()}
    for key in LISTS:
        if isinstance(inner := new.get(key), list):
            new[key] = [map_subschemas(part, change) for part in inner]
    for key in SINGLES:
        if key in new:
            new[key] = map_subschemas(new[key], change)
    return new


def _names_all(schema: Mapping[str, Any]) -> bool:
    names, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(names, Mapping) or not names or schema.keys() & OPEN:
        return False
    return isinstance(required, list) and all(name in names for name in required)


def _is_free_string(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    has_strings = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    return has_strings and not schema.keys() & BOUNDED and isinstance(schema.get("minLength", 0), int)


def property_schemas(schema: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the schemas of an object's properties, each as `standalone_schema` has it, and those of the schemas
    that it combines."""
    found: dict[str, list[Any]] = {}
    for part in _combined_schemas(schema, schema, COMBINING):
        properties = part.get("properties")
        for name, one in properties.items() if isinstance(properties, Mapping) else ():
            known = found.setdefault(name, [])
            known += [one] if one not in known else []
    return {
        name: standalone_schema(each[0] if len(each) == 1 else {"anyOf": each}, schema) for name, each in found.items()
    }


def required_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of the properties that an object of this schema must have."""
    lists = [part.get("required") for part in _combined_schemas(schema, schema, ("allOf",))]
    return {name for names in lists if isinstance(names, list) for name in names}


def additional_property_schema(schema: Mapping[str, Any]) -> Schema | None:
    """Return the schema of an object's properties that its schema does not name; None where it has none. One that names
    some takes others only if it says so."""
    names_none = not property_schemas(schema) and schema.get("additionalProperties") is not False
    if names_none or any(part.get(key) for part in _combined_schemas(schema, schema, COMBINING) for key in OPEN):
        return {} if "patternProperties" in schema else standalone_schema(schema.get("additionalProperties"), schema)
    return None


def options_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of which a value has to fit one; none for an object that names properties beside them."""
    return [] if "properties" in schema else schema.get("anyOf") or schema.get("oneOf") or []


def unsupported_keywords(schema: Mapping[str, Any]) -> set[str]:
    """Return the keywords of an object's schema of which `property_schemas`, `required_of` and
    `additional_property_schema` say nothing, or not all."""
    parts = _combined_schemas(schema, schema, COMBINING)
    found = {key for part in parts for key in part.keys() & {"anyOf", "oneOf", *COUNTED}}
    names = [name for part in parts for name in part.get("properties") or ()]
    return found | ({"allOf"} if "allOf" in schema and len(set(names)) < len(names) else set())


def _combined_schemas(schema: Any, root: Mapping[str, Any], keys: Sequence[str]) -> list[Schema]:
    """Return the schema and those that it combines by these keywords, without references."""
    found: list[Schema] = []
    waiting = [schema]
    while waiting and len(found) < MAX_PARTS:
        one = resolve_reference(waiting.pop(0), root)
        if isinstance(one, Mapping):
            found.append(dict(one))
            waiting += [part for key in keys if isinstance(one.get(key), list) for part in one[key]]
    return found


def standalone_schema(part: Any, root: Mapping[str, Any]) -> Schema:
    """Return a schema inside another as one that needs nothing of it: what it refers to is in its place, or with it."""
    found = resolve_reference(part, root)
    found = dict(found) if isinstance(found, Mapping) else {}
    refers = '"$ref"' in json.dumps(found)
    return found | ({key: root[key] for key in DEFINITIONS if key in root} if refers else {})


def values_of_types(values: Sequence[Any], kinds: Collection[str]) -> list[Any]:
    """Return the values that are of these types of JSON."""
    return [value for value in values if kinds_of(value) & set(kinds)]


def kinds_of(value: Any) -> set[str]:
    """Return the names of a value's types: an integer is a number too."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"integer", "number"}
    return {KINDS.get(type(value), "array")}


def resolve_reference(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema in place of a reference to it within `root`; one that leads nowhere stays."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        target = _target(schema["$ref"], root) if "$ref" in schema else None
        parts = schema.get("allOf")
        if target is None and isinstance(parts, list) and len(parts) == 1:
            target = parts[0]
        if not isinstance(target, Mapping):
            break
        schema = {**target, **rest}
    return schema


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    found: Any = root
    path = reference.split("/") if isinstance(reference, str) else [""]
    for step in path[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if path[0] == "#" and len(path) > 1 else None
