"""/openapi.json says at least what it said when the routes' decorators were written by hand (`openapi_baseline.json`).

What is taken away from it on purpose is taken out of that file too.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server.app import create_app
from server.data_folders import REPOSITORY
from server.settings import Settings
from tests.support.openapi import Json, digest

BASELINE = Path(__file__).parent / "openapi_baseline.json"


def test_the_document_says_at_least_what_it_said(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, weights=tmp_path, model_configs=REPOSITORY / "model_configs", database=None)
    said: Json = digest(create_app(settings).openapi())
    assert list(missing(json.loads(BASELINE.read_text()), said)) == []


def test_what_is_missing_is_found() -> None:
    before = {"GET /": {"described": True, "parameters": {"query n?": "integer"}, "headers": ["a", "b"]}}
    assert list(missing(before, before)) == []
    after = {"GET /": {"described": False, "parameters": {}, "headers": ["b"]}, "PUT /": {}}
    assert list(missing(before, after)) == [
        "GET / described: False, not True",
        "GET / parameters query n?: None, not 'integer'",
        "GET / headers: no 'a'",
    ]


def missing(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield each thing that `after` does not say."""
    if isinstance(before, dict):
        for name, value in before.items():
            yield from missing(value, after.get(name) if isinstance(after, dict) else None, f"{where} {name}".strip())
    elif isinstance(before, list):
        yield from (f"{where}: no {each!r}" for each in before if each not in (after or ()))
    elif before != after:
        yield f"{where}: {after!r}, not {before!r}"
