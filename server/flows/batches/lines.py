"""The lines of a new batch, from its request or from a file of the operator's folder."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from server.accounts.batches import BatchLine
from server.errors import BadRequest

MAX_LINES = 10_000
MAX_CUSTOM_ID = 200
ENDPOINTS = ("/v1/images/generations", "/v1/images/edits", "/v1/chat/completions", "/v1/responses")
HasFlex = Callable[[str, object], bool]  # whether calls of this URL and model may wait for others here
WAITS_FOR_NOBODY = {"stream": "lines have no streams", "background": "a batch runs in the background itself"}


def read_lines(source: object, endpoint: str | None, field: str, has_flex: HasFlex) -> list[BatchLine]:
    """Return the lines of JSONL, or of a list of objects, of the tier "flex" unless they say else. `field` is the
    `param` of errors. Raises BadRequest with the number of the first invalid line."""
    lines: list[BatchLine] = []
    seen: set[str] = set()
    for number, value in _values(source, field):
        if len(lines) == MAX_LINES:
            message = f"Invalid '{field}': too many lines. Expected at most {MAX_LINES}."
            raise BadRequest(message, param=field, code="array_above_max_length")
        line = _line(value, len(lines), endpoint, has_flex, (field, f"line {number}"))
        if line.custom_id in seen:
            raise _invalid(field, f"line {number}", f"the custom_id '{line.custom_id}' is used twice")
        seen.add(line.custom_id)
        lines.append(line)
    if not lines:
        raise BadRequest(f"Invalid '{field}': it has no lines.", param=field, code="array_below_min_length")
    return lines


def read_input_file(folder: Path | None, name: str, max_bytes: int) -> bytes:
    """Read a file of the operator's folder. Blocking. Raises BadRequest."""
    if folder is None:
        message = "This server reads no files of lines (DARKROOM_BATCH_FOLDER): send the lines themselves in 'input'."
        raise BadRequest(message, param="input_file_id", code="unsupported_parameter")
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        message = f"There is no file '{name[:100]}' in the folder of batches. Name one by its path in that folder."
        raise BadRequest(message, param="input_file_id", code="file_not_found")
    if path.stat().st_size > max_bytes:
        message = f"The file '{name[:100]}' is too large: a batch may have {max_bytes // 1024**2} MiB."
        raise BadRequest(message, param="input_file_id", code="string_above_max_length")
    return path.read_bytes()


def _values(source: object, field: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not empty."""
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        yield from enumerate(source, 1)
        return
    text = source.encode() if isinstance(source, str) else source
    if not isinstance(text, bytes):
        raise BadRequest(f"Invalid type for '{field}': expected JSONL or an array.", param=field, code="invalid_type")
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                yield number, from_json(line)
            except ValueError as error:
                raise _invalid(field, f"line {number}", f"it is no JSON: {error}") from error


def _line(value: Any, position: int, endpoint: str | None, has_flex: HasFlex, place: tuple[str, str]) -> BatchLine:
    """Read a line. `place` is the field and the number of the line, for errors."""
    field, where = place
    if not isinstance(value, Mapping):
        raise _invalid(field, where, "it must be an object")
    custom_id, method, url, body = (value.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise _invalid(field, where, f"its 'custom_id' must be a text of 1 to {MAX_CUSTOM_ID} characters")
    if method not in {None, "POST"}:
        raise _invalid(field, where, "its 'method' must be POST")
    url = endpoint if url is None else url
    if url not in ENDPOINTS:
        raise _invalid(field, where, f"its 'url' must be one of {', '.join(ENDPOINTS)}")
    if endpoint is not None and url != endpoint:
        raise _invalid(field, where, f"its 'url' must be the batch's endpoint, {endpoint}")
    if not isinstance(body, Mapping):
        raise _invalid(field, where, "its 'body' must be an object")
    if unfit := [name for name in WAITS_FOR_NOBODY if body.get(name) is True]:
        raise _invalid(field, where, f"'{unfit[0]}' is not possible: {WAITS_FOR_NOBODY[unfit[0]]}")
    if body.get("service_tier") is None and has_flex(url, body.get("model")):
        body = {**body, "service_tier": "flex"}
    return BatchLine(position, custom_id, url, json.dumps(body, ensure_ascii=False))


def _invalid(field: str, where: str, why: str) -> BadRequest:
    return BadRequest(f"Invalid '{field}', {where}: {why}.", param=field, code="invalid_batch_line")
