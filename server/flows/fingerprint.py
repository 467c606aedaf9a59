"""Fingerprints of requests, by which retries are matched: equal parameters and files give equal fingerprints. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from server.flows.references import Reference


def fingerprint(parameters: Mapping[str, Any], pictures: Iterable[Reference]) -> str:
    """SHA-256 of the parameters in a canonical form and of the pictures' contents, by field.

    The encoding does not count: key order, spaces, a form's boundary, file names and content types.
    """
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for picture in pictures:
        source = picture.source if isinstance(picture.source, bytes) else picture.source.encode()
        digest.update(f"\n{picture.field}={hashlib.sha256(source).hexdigest()}".encode())
    return digest.hexdigest()
