"""Fingerprints of requests, by which retries are matched: equal bodies have equal fingerprints. Pure.

A fingerprint has the number of its format and two halves. The first is of the body as it was sent, so it stays what it
is when another version of the server knows more fields, or has other defaults. The second is of what the body means:
synonyms are resolved, and defaults left out. A retry sends the same body, so it is found by the first half. Under an
Idempotency-Key either half is enough: a caller may write the same request in other words.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.orm import InstrumentedAttribute

FORMAT = "2:"  # the first one had no number. Another way to write a half needs another format
HALF = 31  # hexadecimal digits: with its number, a fingerprint fills its columns
SENT = len(FORMAT) + HALF


def fingerprint(sent: Mapping[str, Any], meant: Mapping[str, Any], images: Iterable[tuple[str, bytes | str]]) -> str:
    """Return the fingerprint of a request: of the body that was sent, of the fields that are not as by default, and of
    its images by name. Nulls count as absent. Key order, spaces, a form's boundary and files' names do not count."""
    shown = "".join(f"\n{name}={hashlib.sha256(_bytes(image)).hexdigest()}" for name, image in images)
    return FORMAT + "".join(_half(values, shown) for values in (sent, meant))


def as_sent(fingerprint: str) -> str:
    """Return the half that is equal for requests whose bodies are."""
    return fingerprint[:SENT]


def is_sent_alike(column: InstrumentedAttribute[Any], fingerprint: str) -> ColumnElement[bool]:
    """Return whether a column has the fingerprint of an equal body, in words that an index understands."""
    return column.between(as_sent(fingerprint), f"{as_sent(fingerprint)}g")  # after every hexadecimal digit


def may_be_same(recorded: str | None, sent: str) -> bool:
    """Return whether a recorded request may be this one: it is if either half is equal. One of another format can't be
    told from it."""
    if recorded is None or recorded[: len(FORMAT)] != sent[: len(FORMAT)]:
        return True
    return as_sent(recorded) == as_sent(sent) or recorded[SENT:] == sent[SENT:]


def _half(values: Mapping[str, Any], images: str) -> str:
    text = json.dumps(_without_nulls(values), sort_keys=True)
    return hashlib.sha256(f"{text}{images}".encode()).hexdigest()[:HALF]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value


def _bytes(image: bytes | str) -> bytes:
    return image.encode() if isinstance(image, str) else image
