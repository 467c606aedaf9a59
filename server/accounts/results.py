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
class SentPictures:
    """The references of a call, in their order: the name of a file here, as far as a URL has one, or the SHA-256 of the
    bytes that were sent."""

    names: Sequence[str | None]
    hashes: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a picture was made from. `parents` are the names of results among its references."""

    seed: int | None
    prompt: str
    parameters: Mapping[str, Any]
    parents: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A stored picture whose file is there. `origin` is None unless prompts were kept."""

    name: str
    call_id: str
    key_id: str
    model: str
    endpoint: str
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
            of_rows = select(HoldRow).where(HoldRow.call_id.in_({each.call_id for each in rows}))
            holds = {hold.call_id: hold for hold in session.scalars(of_rows)}
            return [_result(each, holds[each.call_id]) for each in rows]

    def find(self, name: str, key_id: str) -> Result | None:
        """None if it is not this key's, or deleted."""
        with self._database.read() as session:
            row = session.get(ResultRow, name)
            if row is None or row.key_id != key_id or row.deleted_at is not None:
                return None
            return _result(row, session.get_one(HoldRow, row.call_id))

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


def write_origins(session: Session, origins: Mapping[str, Origin], sent: SentPictures) -> None:
    """Write the origins of pictures that this transaction records, by name. A result of the same key that was sent as a
    file is known by its hash."""
    session.flush()
    rows = {name: session.get_one(ResultRow, name) for name in origins}
    key_id = next(row.key_id for row in rows.values())
    named = select(ResultRow.name).where(ResultRow.name.in_({name for name in sent.names if name}))
    known = {name: name for name in session.scalars(named)}
    mine = (ResultRow.key_id == key_id, ResultRow.deleted_at.is_(None), ResultRow.name.not_in(origins))
    alike = select(ResultRow.sha256, ResultRow.name).where(
        ResultRow.sha256.in_({digest for digest in sent.hashes if digest}), *mine
    )
    known |= dict(session.execute(alike.order_by(ResultRow.created_at, ResultRow.name)).all())
    found = [known.get(name or digest or "") for name, digest in zip(sent.names, sent.hashes, strict=True)]
    for name, origin in origins.items():
        row = rows[name]
        row.seed, row.prompt, row.parameters = origin.seed, origin.prompt, dict(origin.parameters)
        row.parents = [parent for parent in found if parent is not None]


def _result(row: ResultRow, hold: HoldRow) -> Result:
    origin = None
    if row.prompt is not None:
        origin = Origin(row.seed, row.prompt, row.parameters or {}, row.parents or ())
    sizes = (row.width_px, row.height_px, row.size_bytes)
    call = (row.call_id, row.key_id, hold.model, hold.endpoint)
    return Result(row.name, *call, row.media_type, *sizes, row.created_at, origin)
