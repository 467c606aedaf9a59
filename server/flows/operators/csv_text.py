"""Rows as CSV, a piece at a time."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

TIMES = ("created_at", "expires_at", "revoked_at", "rotating_until", "last_used_at")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet takes a text for a formula


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, header: bool) -> str:
    """Write rows with these columns as CSV text. Times are ISO 8601 in UTC; objects are JSON."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([_cell(name, row.get(name)) for name in columns] for row in rows)
    return file.getvalue()


def _cell(name: str, value: Any) -> Any:
    if name in TIMES and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value
