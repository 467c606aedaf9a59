"""The document /openapi.json: FastAPI's, with the schemas that the routes' decorators refer to."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, cast

from fastapi import FastAPI
from pydantic import TypeAdapter

from server.http.deps import key_headers
from server.http.dialect import Dialect
from server.http.openapi import JSON_TEXT, Json, shared_components


def describe(dialects: Sequence[Dialect]) -> str:
    """Return what the API is, and where a client sends its key."""
    headers = " or ".join(f"`{name}`" for name in key_headers(dialects))
    return (
        "Images, chat completions and responses in the shapes of OpenAI's API. OpenAI's SDKs work with this server's "
        f"URL and one of its keys, which is sent as `Authorization: Bearer KEY`, or as {headers}. Every error has the "
        "same body."
    )


class DocumentedApp(FastAPI):
    """An app whose document is complete. It is written at the first request for it."""

    def openapi(self) -> Json:
        if not self.openapi_schema:
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # a GET and its HEAD have one id
                self.openapi_schema = _complete(super().openapi())
        return self.openapi_schema


def _complete(document: Json) -> Json:
    for path in document["paths"].values():
        for method, operation in path.items():
            _correct(operation, method)
    document["components"] = shared_components()
    types = sorted({ref for ref in _references(document) if not ref.startswith("#")})
    adapters = [(ref, cast("Any", ref.split()[0]), TypeAdapter(resolve_name(ref.split()[1]))) for ref in types]
    schemas, definitions = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    document["components"]["schemas"] = definitions["$defs"]
    complete: Json = _resolve(document, {ref: schema for (ref, _), schema in schemas.items()})
    return complete


def _correct(operation: Json, method: str) -> None:
    """Make ids unique, parameters single, and remove the 422 that FastAPI adds: this server answers 400 instead."""
    operation["operationId"] = f"{operation['operationId'].rpartition('_')[0]}_{method}"
    by_name = {(each["in"], each["name"]): each for each in operation.get("parameters", ())}  # the decorator's are last
    operation["parameters"] = list(by_name.values())
    if "HTTPValidationError" in str(operation["responses"].get("422")):
        del operation["responses"]["422"]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _references(inner)


def _resolve(value: Any, schemas: Mapping[str, Json]) -> Any:
    """The value with references to types and JSON texts replaced."""
    if isinstance(value, list):
        return [_resolve(inner, schemas) for inner in value]
    if not isinstance(value, dict):
        return value
    if JSON_TEXT in value:
        return json.loads(value[JSON_TEXT])
    if value.get("$ref") in schemas:
        return schemas[value["$ref"]]
    return {name: _resolve(inner, schemas) for name, inner in value.items()}
