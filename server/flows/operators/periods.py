"""Periods as people and programs write them."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from server.accounts.paging import Period
from server.errors import BadRequest

DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])", re.ASCII)

WORDS = {"today": timedelta(0), "yesterday": timedelta(days=1)}


def read_period(since: str | None, until: str | None) -> Period:
    """Return the period from the beginning of `since` to the end of `until`: days or months in UTC, or Unix seconds, of
    which `until` is excluded. Raises BadRequest, with the parameters `from` and `to`."""
    period = Period(_moment("from", since), _moment("to", until))
    if period.since is not None and period.until is not None and period.since > period.until:
        raise BadRequest("Invalid 'to': it is before 'from'.", param="to")
    return period


def _moment(param: Literal["from", "to"], text: str | None) -> float | None:
    if not text:
        return None
    try:
        if MONTH.fullmatch(text):
            return _month(text, is_end=param == "to")
        if text in WORDS:
            text = f"{datetime.now(UTC) - WORDS[text]:%Y-%m-%d}"
        if DAY.fullmatch(text):
            day = datetime.fromisoformat(text).replace(tzinfo=UTC)
            return (day + timedelta(days=param == "to")).timestamp()
        seconds = float(text)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < 1e11:
        message = (
            f"Invalid '{param}': expected a day like 2026-11-01, a month like 2026-11, 'today', 'yesterday' or Unix "
            f"seconds, but got '{text[:40]}'."
        )
        raise BadRequest(message, param=param)
    return seconds


def _month(text: str, *, is_end: bool) -> float:
    year, month = map(int, text.split("-"))
    first = datetime(year, month, 1, tzinfo=UTC)
    after = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return (after if is_end else first).timestamp()
