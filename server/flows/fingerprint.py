"""Fingerprints of requests, by which retries are matched: equal parameters and files give equal fingerprints. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from server.flows.references import Reference, StoredPicture


def fingerprint(parameters: Mapping[str, Any], pictures: Iterable[Reference]) -> str:
    """SHA-256 of the parameters in a canonical form and of the pictures' contents, by field.

    The encoding does not count: key order, spaces, a form's boundary, file names and content types.
    """
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for picture in pictures:
        source = picture.source.name if isinstance(picture.source, StoredPicture) else picture.source
        content = source.encode() if isinstance(source, str) else source
        digest.update(f"\n{picture.field}={hashlib.sha256(content).hexdigest()}".encode())
    return digest.hexdigest()
