"""A dialect as an app knows it: a protocol other than OpenAI's. Each is a folder of `server/dialects/`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.types import Scope

from server.errors import ApiError
from server.schemas.models import ChatCard, ModelCard

Cards = Sequence[ModelCard | ChatCard]


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """How a dialect shows models at the URLs that it shares with OpenAI's protocol: one, and a page of them by the
    query's parameters. Raises BadRequest for a page that is not there."""

    one: Callable[[ModelCard | ChatCard], Mapping[str, Any]]
    page: Callable[[Cards, Mapping[str, str]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The registration of a dialect. `server.extras` lists those that are installed."""

    vendor: str  # whose clients speak it, as messages name it
    routers: tuple[APIRouter, ...]
    paths: re.Pattern[str]  # matched from the start of a URL's path: where errors have the dialect's shape
    error_answer: Callable[[ApiError], tuple[int, Mapping[str, Any]]]  # the status and body of an error
    key_headers: tuple[str, ...] = ()  # in which its clients send the key; they are read at every URL
    key_query: tuple[str, str] | None = None  # below this path, this parameter of the query is the key too
    request_id_header: str | None = None  # in which its clients expect the request's id
    client_headers: tuple[str, ...] = ()  # by which its clients are known at URLs that are not its own
    models: ModelShapes | None = None  # what they get at /v1/models


def dialects_of(scope: Scope) -> Sequence[Dialect]:
    """Return the dialects of the app that has this request; none before an app has it."""
    return scope["app"].state.dialects if "app" in scope else ()


def find_dialect(scope: Scope, path: str) -> Dialect | None:
    """Return the dialect of the app that answers at this path, None for OpenAI's protocol."""
    return next((dialect for dialect in dialects_of(scope) if dialect.paths.match(path)), None)


def find_client(scope: Scope) -> Dialect | None:
    """Return the dialect whose client has sent this request, by its headers; None for OpenAI's clients."""
    sent = {name.decode("latin-1") for name, _ in scope.get("headers", ())}
    return next((dialect for dialect in dialects_of(scope) if sent & {*dialect.client_headers}), None)


def request_id_headers(dialects: Sequence[Dialect]) -> list[str]:
    """Return the names of the headers in which every answer has its request's id: OpenAI's, and those of dialects."""
    return ["x-request-id", *(dialect.request_id_header for dialect in dialects if dialect.request_id_header)]
