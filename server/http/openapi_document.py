"""The document /openapi.json: FastAPI's, with the schemas that the routes' decorators refer to."""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, cast

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from server.http.bodies import JsonBody
from server.http.deps import key_headers
from server.http.dialect import Dialect
from server.http.openapi import JSON_TEXT, RETRY_STATUSES, Json, errors, header_docs, json_body, shared_components


def describe(dialects: Sequence[Dialect]) -> str:
    """Describe the API, and where a client sends its key."""
    headers = " or ".join(f"`{name}`" for name in key_headers(dialects))
    return (
        "Images, chat completions and responses in the shapes of OpenAI's API. OpenAI's SDKs work with this server's "
        f"URL and one of its keys, which is sent as `Authorization: Bearer KEY`, or as {headers}. Every error has the "
        "same body."
    )


class DocumentedApp(FastAPI):
    """An app whose document is complete. It is written at the first request for it."""

    def openapi(self) -> Json:
        """Return the document, which is written at the first call."""
        if not self.openapi_schema:
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # a GET and its HEAD have one id
                self.openapi_schema = _complete(super().openapi(), self.routes)
        return self.openapi_schema


def _complete(document: Json, routes: Sequence[BaseRoute]) -> Json:
    bodies = {(path, method.lower()): body for path, methods, body in _json_bodies(routes) for method in methods}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _correct(operation, method, bodies.get((path, method)))
    known = document["components"]
    document["components"] = {**shared_components(), "securitySchemes": known["securitySchemes"]}
    types = sorted({ref for ref in _references(document) if not ref.startswith("#")})
    adapters = [(ref, cast("Any", ref.split()[0]), TypeAdapter(resolve_name(ref.split()[1]))) for ref in types]
    schemas, definitions = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    of_fastapi = {name: schema for name, schema in known["schemas"].items() if "ValidationError" not in name}
    document["components"]["schemas"] = of_fastapi | definitions["$defs"]
    complete: Json = _resolve(document, {ref: schema for (ref, _), schema in schemas.items()})
    return complete


def _json_bodies(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, Collection[str], JsonBody[Any]]]:
    """Yield the path, the methods and the body of each route that takes a JsonBody."""
    for route in iter_route_contexts(routes):
        for dependency in getattr(getattr(route, "dependant", None), "dependencies", ()):
            if isinstance(dependency.call, JsonBody):
                yield route.path_format or "", route.methods or (), dependency.call


def _correct(operation: Json, method: str, body: JsonBody[Any] | None) -> None:
    """Make ids unique and parameters single, take the summary from the docstring's first line, and say which errors a
    route can answer: 400 in place of the 422 that FastAPI adds, which this server never answers."""
    operation["operationId"] = f"{operation['operationId'].rpartition('_')[0]}_{method}"
    summary, _, description = str(operation.get("description", operation["summary"])).partition("\n\n")
    operation["summary"] = " ".join(summary.split()).removesuffix(".")
    operation["description"] = " ".join((description or summary).split())
    by_name = {(each["in"], each["name"]): each for each in operation.get("parameters", ())}  # the decorator's are last
    operation["parameters"] = [_without_null(each) for each in by_name.values()]
    operation.setdefault("security", [])
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
    expected = {401, 500, 503} if operation["security"] else set()
    if body is not None:
        operation["requestBody"] = json_body(body.model, body.examples)
        expected |= {400, 413}
    for status, error in errors(*sorted(expected)).items():
        responses.setdefault(str(status), error)
    for status, answer in responses.items():
        if "$ref" not in answer:
            retry = ["Retry-After"] if status in map(str, RETRY_STATUSES) else []
            answer["headers"] = header_docs(["x-request-id", *retry]) | answer.get("headers", {})


def _without_null(parameter: Json) -> Json:
    """Return a parameter that is left out rather than null."""
    schema = dict(parameter["schema"])
    if "anyOf" in schema:
        (only,) = (each for each in schema.pop("anyOf") if each != {"type": "null"})
        schema |= only
    return {
        **parameter,
        "schema": {name: value for name, value in schema.items() if name not in {"title", "description"}},
    }


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _references(inner)


def _resolve(value: Any, schemas: Mapping[str, Json]) -> Any:
    """Replace the references to types and the JSON texts in a value."""
    if isinstance(value, list):
        return [_resolve(inner, schemas) for inner in value]
    if not isinstance(value, dict):
        return value
    if JSON_TEXT in value:
        return json.loads(value[JSON_TEXT])
    if value.get("$ref") in schemas:
        return schemas[value["$ref"]]
    return {name: _resolve(inner, schemas) for name, inner in value.items()}
