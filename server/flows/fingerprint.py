"""Fingerprints of requests, by which retries are matched: equal parameters and files give equal fingerprints. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from server.flows.references import Reference, StoredImage


def fingerprint(parameters: Mapping[str, Any], images: Iterable[Reference]) -> str:
    """Return the SHA-256 of the parameters in a canonical form and of the images' contents, by field. The encoding does
    not count: key order, spaces, a form's boundary, file names and content types."""
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for image in images:
        source = image.source.name if isinstance(image.source, StoredImage) else image.source
        content = source.encode() if isinstance(source, str) else source
        digest.update(f"\n{image.field}={hashlib.sha256(content).hexdigest()}".encode())
    return digest.hexdigest()
