"""A key's stored pictures: what they were made from, by page, and deleted."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from server.accounts.db import PAGE
from server.accounts.paging import ALWAYS, Page, Period, read_page
from server.accounts.store import Store
from server.accounts.tables import HoldRow, ResultRow

FORGOTTEN = {"seed": None, "prompt": None, "parameters": None, "parents": None}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a picture was made from. `parents` are the names of results among its references."""

    seed: int | None
    prompt: str
    parameters: Mapping[str, Any]
    parents: Sequence[str]


@dataclass(frozen=True, slots=True)
class Result:
    """A stored picture whose file is there. `origin` is None unless prompts were kept."""

    name: str
    call_id: str
    key_id: str
    model: str
    media_type: str
    width_px: int
    height_px: int
    size_bytes: int
    created_at: float
    origin: Origin | None


@dataclass(frozen=True, slots=True)
class ResultFilter:
    """`words`: all of them are in the prompt."""

    key_id: str
    model: str | None = None
    words: Sequence[str] = ()
    period: Period = ALWAYS


class ResultStore(Store):
    """Reads the pictures of keys, and marks them as deleted: a sweep removes their files."""

    def page(self, wanted: ResultFilter, page: Page) -> list[Result]:
        """And one more than the page has room for if there are more. Raises UnknownEntry."""
        row = ResultRow
        query = select(row).join(HoldRow, HoldRow.call_id == row.call_id)
        query = query.where(
            row.key_id == wanted.key_id, row.deleted_at.is_(None), *wanted.period.bounds(row.created_at)
        )
        query = query.where(*(row.prompt.icontains(word, autoescape=True) for word in wanted.words))
        if wanted.model is not None:
            query = query.where(HoldRow.model == wanted.model)
        with self._database.read() as session:
            after = session.get(row, page.after) if page.after is not None else None
            if after is not None and after.key_id != wanted.key_id:
                after = None
            rows = read_page(session, query, [row.created_at, row.name], page, after)
            named = select(HoldRow.call_id, HoldRow.model).where(HoldRow.call_id.in_({each.call_id for each in rows}))
            models = dict(session.execute(named).all())
            return [_result(each, models[each.call_id]) for each in rows]

    def find(self, name: str, key_id: str) -> Result | None:
        """None if it is not this key's, or deleted."""
        with self._database.read() as session:
            row = session.get(ResultRow, name)
            if row is None or row.key_id != key_id or row.deleted_at is not None:
                return None
            return _result(row, session.get_one(HoldRow, row.call_id).model)

    def delete(self, name: str, key_id: str) -> bool:
        """Forget a picture, and what it was made from; its charge stays. False if there is none."""
        row = ResultRow
        mine = (row.name == name, row.key_id == key_id, row.deleted_at.is_(None))
        values = {**FORGOTTEN, "deleted_at": time.time()}
        with self._database.write() as session:
            return session.scalar(update(row).where(*mine).values(**values).returning(row.name)) is not None

    def forget_origins(self, limit: int = PAGE) -> int:
        """Remove prompts and parameters that were kept before; returns how many. If as many as `limit`, there may be
        more."""
        page = select(ResultRow.name).where(ResultRow.prompt.is_not(None)).limit(limit)
        with self._database.write() as session:
            forgotten = update(ResultRow).where(ResultRow.name.in_(page)).values(**FORGOTTEN)
            return len(session.scalars(forgotten.returning(ResultRow.name)).all())


def write_origins(session: Session, origins: Mapping[str, Origin]) -> None:
    """Of pictures that the session's transaction records, by name."""
    session.flush()
    named = {name for origin in origins.values() for name in origin.parents}
    known = set(session.scalars(select(ResultRow.name).where(ResultRow.name.in_(named))))
    for name, origin in origins.items():
        row = session.get_one(ResultRow, name)
        row.seed, row.prompt, row.parameters = origin.seed, origin.prompt, dict(origin.parameters)
        row.parents = [name for name in origin.parents if name in known]


def _result(row: ResultRow, model: str) -> Result:
    origin = None
    if row.prompt is not None:
        origin = Origin(row.seed, row.prompt, row.parameters or {}, row.parents or ())
    sizes = (row.width_px, row.height_px, row.size_bytes)
    return Result(row.name, row.call_id, row.key_id, model, row.media_type, *sizes, row.created_at, origin)
