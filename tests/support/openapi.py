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
