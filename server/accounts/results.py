"""The stored images of calls: recorded with their charge, found, listed, deleted, and checked against the ledger."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Text, cast, select, update
from sqlalchemy.orm import Session

from server.accounts.clock_skew import reset_future_times
from server.accounts.db import PAGE, Database
from server.accounts.paging import ALWAYS, Page, Period, read_own
from server.accounts.report import call_problems, holds
from server.accounts.result_tables import ResultRow
from server.accounts.store import Store, Write
from server.accounts.tables import HoldRow

CALL_PREFIX = "img_"  # of the ids of the calls that make images
FORGOTTEN = {"seed": None, "prompt": None, "parameters": None, "parents": None}


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A finished image whose file is on disk and synced."""

    name: str
    media_type: str
    width_px: int
    height_px: int
    size_bytes: int
    sha256: str
    position: int


@dataclass(frozen=True, slots=True)
class SentImages:
    """The references of a call, in their order: the name of a file here, as far as a URL has one, or the SHA-256 of the
    bytes that were sent."""

    names: Sequence[str | None]
    hashes: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an image: its prompt, seed and values. `parents` are the names of results among its references."""

    seed: int | None
    prompt: str
    parameters: Mapping[str, Any]
    parents: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A stored image whose file is there. `origin` is None unless prompts were kept."""

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
    favourite: bool = False


@dataclass(frozen=True, slots=True)
class ResultFilter:
    """A filter of images. `words`: all of them are in the prompt. `parent`: the result that they were made from.
    `favourites`: only those."""

    key_id: str
    model: str | None = None
    words: Sequence[str] = ()
    parent: str | None = None
    period: Period = ALWAYS
    favourites: bool = False


class ResultStore(Store):
    """Records and reads stored images, and forgets them."""

    def record_write(self, call_id: str, results: Sequence[StoredResult]) -> Write:
        """Return the write that records a call's images, for the transaction that charges it."""

        def write(session: Session) -> None:
            key_id, now = session.get_one(HoldRow, call_id).key_id, self.now()
            for result in results:
                session.add(ResultRow(**asdict(result), call_id=call_id, key_id=key_id, created_at=now))

        return write

    def find_file(self, name: str) -> StoredResult | None:
        """Return the record of an image, whosever it is; None if there is none, or its file was deleted."""
        with self._database.read() as session:
            row = session.get(ResultRow, name)
        if row is None or row.deleted_at is not None:
            return None
        return row.to(StoredResult)

    def recorded(self, names: Collection[str]) -> set[str]:
        """Return which of these files have a record, and so must be there."""
        with self._database.read() as session:
            kept = (ResultRow.name.in_(names), ResultRow.deleted_at.is_(None))
            return set(session.scalars(select(ResultRow.name).where(*kept)))

    def page(self, wanted: ResultFilter, page: Page) -> list[Result]:
        """List images, and one more than the page has room for if there are more. Raises UnknownEntry."""
        row = ResultRow
        query = select(row).join(HoldRow, HoldRow.call_id == row.call_id)
        query = query.where(
            row.key_id == wanted.key_id, row.deleted_at.is_(None), *wanted.period.bounds(row.created_at)
        )
        query = query.where(*(row.prompt.icontains(word, autoescape=True) for word in wanted.words))
        if wanted.favourites:
            query = query.where(row.favourite)
        if wanted.model is not None:
            query = query.where(HoldRow.model == wanted.model)
        if wanted.parent is not None:  # a list of names, as JSON
            query = query.where(cast(row.parents, Text).contains(f'"{wanted.parent}"', autoescape=True))
        with self._database.read() as session:
            rows = read_own(session, query, [row.created_at, row.name], page, wanted.key_id)
            of_rows = select(HoldRow).where(HoldRow.call_id.in_({each.call_id for each in rows}))
            holds = {hold.call_id: hold for hold in session.scalars(of_rows)}
            return [_result(each, holds[each.call_id]) for each in rows]

    def find(self, name: str, key_id: str) -> Result | None:
        """Return an image; None if it is not this key's, or deleted."""
        with self._database.read() as session:
            row = session.get(ResultRow, name)
            if row is None or row.key_id != key_id or row.deleted_at is not None:
                return None
            return _result(row, session.get_one(HoldRow, row.call_id))

    def mark(self, name: str, key_id: str, *, favourite: bool) -> bool:
        """Make an image a favourite, or an image like others. Returns False if there is none."""
        row = ResultRow
        mine = (row.name == name, row.key_id == key_id, row.deleted_at.is_(None))
        return self._write(update(row).where(*mine).values(favourite=favourite)) > 0

    def delete(self, name: str, key_id: str) -> bool:
        """Forget an image and its origin; its charge stays. Returns False if there is none."""
        row = ResultRow
        mine = (row.name == name, row.key_id == key_id, row.deleted_at.is_(None))
        values = {**FORGOTTEN, "deleted_at": self.now()}
        return self._write(update(row).where(*mine).values(**values)) > 0

    def expired(self, max_age_s: float, limit: int) -> list[str]:
        """Return the names of results that are older than this, oldest first."""
        row, clock = ResultRow, self._database.clock
        with self._database.write() as session:
            reset_future_times(session, row.created_at, clock, max_age_s)
        query = select(row.name).where(row.created_at < clock.earliest() - max_age_s, row.deleted_at.is_(None))
        with self._database.read() as session:
            return list(session.scalars(query.order_by(row.created_at).limit(limit)))

    def delete_origins(self, limit: int = PAGE) -> int:
        """Remove prompts and parameters that were kept before; returns how many. If as many as `limit`, there may be
        more."""
        page = select(ResultRow.name).where(ResultRow.prompt.is_not(None)).limit(limit)
        return self._write(update(ResultRow).where(ResultRow.name.in_(page)).values(**FORGOTTEN))


def check(database: Database, stored: Callable[[str], bool] | None = None) -> list[str]:
    """Return one line for each image call whose results disagree with the ledger, and for each result without a file.
    `stored` says whether a file exists."""
    no_result = ~select(ResultRow.name).where(ResultRow.call_id == HoldRow.call_id).exists()
    of_images = HoldRow.call_id.startswith(CALL_PREFIX, autoescape=True)
    no_hold = ~select(HoldRow.call_id).where(HoldRow.call_id == ResultRow.call_id).exists()
    with database.read() as session:
        problems = [
            *call_problems(session, holds("captured", of_images, no_result), "is captured and has no result"),
            *call_problems(session, holds("void", ~no_result), "is void and has results"),
            *call_problems(session, holds("held", ~no_result), "is still held and has results"),
            *call_problems(session, select(ResultRow.call_id).where(no_hold), "has a result and no hold"),
        ]
        if stored is not None:
            names = session.scalars(select(ResultRow.name).where(ResultRow.deleted_at.is_(None))).yield_per(PAGE)
            problems += [f"result {name} has no file" for name in names if not stored(name)]
    return problems


def write_origins(session: Session, origins: Mapping[str, Origin], sent: SentImages) -> None:
    """Write the origins of images that this transaction records, by name. A result of the same key that was sent as a
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
    return row.to(Result, model=hold.model, endpoint=hold.endpoint, origin=origin)
