"""What tests need to read /openapi.json."""

import copy
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Each with its method and its path."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def response(document: Json, operation: Json, status: int) -> Json:
    """What the operation says of answers with this status."""
    found: Json = operation["responses"][str(status)]
    if "$ref" not in found:
        return found
    shared: Json = document["components"]["responses"][found["$ref"].rpartition("/")[2]]
    return shared


def check(document: Json, schema: Json, value: Any, *, exact: bool = False) -> None:
    """Raises ValidationError unless the value matches. `exact`: no object may have a key that is not described."""
    components = _closed(document["components"]) if exact else document["components"]
    Draft202012Validator({**schema, "components": components}).validate(value)


def _closed(components: Json) -> Json:
    closed = copy.deepcopy(components)
    for schema in closed["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return closed


def digest(document: Json) -> Json:
    """Return what the document says, in short: of each operation and schema the names and types, and what is
    described."""
    fields = {
        name: sorted(f"{field}: {_type(each)}" for field, each in schema.get("properties", {}).items())
        for name, schema in document["components"]["schemas"].items()
    }
    said = {f"{method} {path}": _operation(operation) for method, path, operation in operations(document)}
    return {"operations": said, "schemas": fields}


def _operation(operation: Json) -> Json:
    parameters = {
        f"{each['in']} {each['name']}{'' if each['required'] else '?'}": _type(each["schema"])
        for each in operation["parameters"]
        if each["description"]
    }
    return {
        "security": [name for each in operation["security"] for name in each],
        "described": bool(operation["summary"] and operation["description"]),
        "parameters": parameters,
        "body": _contents(operation.get("requestBody", {})),
        "responses": {status: _response(found) for status, found in operation["responses"].items()},
    }


def _response(found: Json) -> Json:
    if "$ref" in found:
        return {"$ref": found["$ref"].rpartition("/")[2]}
    headers = sorted(found.get("headers", {}))
    return {"headers": headers, "content": _contents(found), "described": bool(found["description"])}


def _contents(found: Json) -> Json:
    return {
        kind: {"type": _type(content["schema"]), "examples": sorted(content.get("examples", {}))}
        for kind, content in found.get("content", {}).items()
    }


def _type(schema: Json) -> str:
    if "enum" in schema:
        return " ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(sorted({_type(each) for each in schema["anyOf"]}))
    return str(schema.get("type") or schema.get("$ref", "").rpartition("/")[2] or schema.get("const", ""))
