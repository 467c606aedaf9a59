"""Stored responses and their chains. Another key's response is as good as none.

A response is recorded when it begins, each output item when it is there, and the end once: a response that has ended,
or that somebody cancelled, is not ended again. So a killed server leaves responses that say how far they came.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, delete, literal, or_, select, update
from sqlalchemy.orm import Session

from server.accounts.calls import Write
from server.accounts.db import Database
from server.accounts.response_tables import FileRow, ItemRow, ResponseRow

Side = Literal["input", "output"]
RUNNING = ("queued", "in_progress")
MOST_ALIKE = 50  # records of equal responses that are looked at
SERVER_DIED = {
    "code": "server_error",
    "message": "The server stopped while it ran this response; what is not in its output was not charged.",
}


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as it is kept: a picture is the name of its file, in `picture` and never in the body."""

    side: Side
    body: Mapping[str, Any]
    picture: str | None = None

    @property
    def id(self) -> str:
        """The item's id."""
        return str(self.body["id"])

    @property
    def files(self) -> list[str]:
        """The stored files that it shows."""
        content = self.body.get("content")
        parts = content if isinstance(content, list) else []
        return [*([self.picture] if self.picture else []), *(part["file"] for part in parts if "file" in part)]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as the database knows it. `ended` is None while it runs.

    A request with the same Idempotency-Key and parameters (`fingerprint`) gets this response again, unless it failed.
    One that is not `stored` is there for nothing else. `heard` says that somebody still listened when it ended.
    """

    id: str
    key_id: str
    previous_id: str | None
    state: str
    background: bool
    echo: Mapping[str, Any]
    created_at: int
    ended: Mapping[str, Any] | None = None
    events: Sequence[Mapping[str, Any]] | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    stored: bool = True
    heard: bool = False

    @property
    def kept(self) -> bool:
        """Whether a retry gets this answer."""
        return self.state in {"completed", "incomplete"}

    @property
    def lasting(self) -> bool:
        """Whether it goes on when nobody listens: somebody will ask for it."""
        return self.background or self.idempotency_key is not None

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.state in RUNNING


class ResponseBook:
    """The records as one server process sees them."""

    def __init__(self, database: Database, owner: str, lease_s: float) -> None:
        self._database = database
        self._owner = owner
        self._lease_s = lease_s

    def begin(self, response: StoredResponse, inputs: Sequence[StoredItem]) -> None:
        """Record a response that runs, with what went in."""
        row = ResponseRow(
            id=response.id,
            key_id=response.key_id,
            previous_id=response.previous_id,
            state=response.state,
            owner=self._owner,
            lease_until=time.time() + self._lease_s,
            background=response.background,
            echo=dict(response.echo),
            idempotency_key=response.idempotency_key,
            fingerprint=response.fingerprint,
            stored=response.stored,
            heard=False,
            created_at=response.created_at,
        )
        with self._database.write() as session:
            session.add(row)
            session.flush()
            session.add_all(_item_row(response.id, response.key_id, i, item) for i, item in enumerate(inputs))
            names = {name for item in inputs for name in item.files}
            session.add_all(FileRow(name=name, response_id=response.id) for name in names)

    def start(self, response_id: str) -> None:
        """A queued response has begun to run."""
        with self._database.write() as session:
            mine = (ResponseRow.id == response_id, ResponseRow.state == "queued")
            session.execute(update(ResponseRow).where(*mine).values(state="in_progress"))

    def output(self, response: StoredResponse, position: int, item: StoredItem) -> Write:
        """Record an item that is done. `position` counts on after the inputs."""

        def write(session: Session) -> None:
            if session.get(ResponseRow, response.id) is not None:  # it may have been deleted on the way
                session.add(_item_row(response.id, response.key_id, position, item))

        return write

    def add_output(self, response: StoredResponse, position: int, item: StoredItem) -> None:
        """The same, in a transaction of its own."""
        with self._database.write() as session:
            self.output(response, position, item)(session)

    def finish(self, response_id: str, state: str, ended: Mapping[str, Any], *, heard: bool) -> bool:
        """Record the end. False when it has ended before, or is gone."""
        which = (ResponseRow.id == response_id, ResponseRow.state.in_(RUNNING))
        values = {"state": state, "ended": dict(ended), "heard": heard, "ended_at": time.time()}
        change = update(ResponseRow).where(*which).values(**values)
        if state in {"failed", "cancelled"}:
            change = change.values(idempotency_key=None)
        with self._database.write() as session:
            return bool(session.scalars(change.returning(ResponseRow.id)).all())

    def keep_events(self, response_id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Record what was told, for who reads the stream again."""
        change = update(ResponseRow).where(ResponseRow.id == response_id).values(events=list(events))
        with self._database.write() as session:
            session.execute(change)

    def find(self, response_id: str, key_id: str) -> tuple[StoredResponse, list[StoredItem]] | None:
        """A stored response of this key, and all its items in order."""
        return self._find(ResponseRow.id == response_id, ResponseRow.key_id == key_id, ResponseRow.stored.is_(True))

    def find_keyed(self, idempotency_key: str, key_id: str) -> tuple[StoredResponse, list[StoredItem]] | None:
        """A response by its Idempotency-Key, stored or not."""
        return self._find(ResponseRow.idempotency_key == idempotency_key, ResponseRow.key_id == key_id)

    def find_alike(self, key_id: str, fingerprint: str, within_s: float) -> list[StoredResponse]:
        """Responses with the same parameters and without an Idempotency-Key that ended lately, the newest first."""
        lately = (ResponseRow.fingerprint == fingerprint, ResponseRow.ended_at > time.time() - within_s)
        mine = (ResponseRow.key_id == key_id, ResponseRow.idempotency_key.is_(None))
        newest = select(ResponseRow).where(*mine, *lately).order_by(ResponseRow.created_at.desc()).limit(MOST_ALIKE)
        with self._database.read() as session:
            return [_response(row) for row in session.scalars(newest)]

    def tell_again(self, response_id: str) -> tuple[StoredResponse, list[StoredItem]] | None:
        """The response with its items, for a retry, which hears its end now."""
        with self._database.write() as session:
            session.execute(update(ResponseRow).where(ResponseRow.id == response_id).values(heard=True))
        return self._find(ResponseRow.id == response_id)

    def _find(self, *which: ColumnElement[bool]) -> tuple[StoredResponse, list[StoredItem]] | None:
        joined = select(ResponseRow, ItemRow).outerjoin(ItemRow, ItemRow.response_id == ResponseRow.id)
        query = joined.where(*which).order_by(ItemRow.position)
        with self._database.read() as session:
            rows = session.execute(query).all()
        if not rows:
            return None
        return _response(rows[0][0]), [_item(row) for _, row in rows if row is not None]

    def chain(self, response_id: str, key_id: str) -> tuple[str, list[StoredItem]] | None:
        """The state of a response, and the items of all rounds up to it, the oldest first. One query."""
        with self._database.read() as session:
            rows = session.execute(_chain_query(response_id, key_id)).all()
        if not rows:
            return None
        return rows[-1][0], [_item(row) for _, row in rows if row is not None]

    def items(self, item_ids: Iterable[str], key_id: str) -> dict[str, StoredItem]:
        """Items of this key by their ids; what is not there is left out."""
        stored = select(ResponseRow.id).where(ResponseRow.id == ItemRow.response_id, ResponseRow.stored).exists()
        mine = (ItemRow.item_id.in_(set(item_ids)), ItemRow.key_id == key_id)
        query = select(ItemRow).where(*mine, stored).order_by(ItemRow.id)
        with self._database.read() as session:
            return {row.item_id: _item(row) for row in session.scalars(query)}

    def delete(self, response_id: str, key_id: str) -> bool:
        """Forget a response and its items. False when there is none."""
        with self._database.write() as session:
            row = session.get(ResponseRow, response_id)
            if row is None or row.key_id != key_id or not row.stored:
                return False
            _delete(session, select(ResponseRow.id).where(ResponseRow.id == response_id))
        return True

    def renew(self) -> None:
        """Extend the leases of what this server runs."""
        mine = (ResponseRow.owner == self._owner, ResponseRow.state.in_(RUNNING))
        with self._database.write() as session:
            session.execute(update(ResponseRow).where(*mine).values(lease_until=time.time() + self._lease_s))

    def settle_orphans(self) -> int:
        """End what dead servers ran; returns how many. Servers that share a database tell by the lease who is dead.

        One with a picture was charged for it: it is delivered as it is, and a retry is not charged again.
        """
        dead = ResponseRow.owner != self._owner
        if not self._database.is_sqlite:
            dead = dead & (ResponseRow.lease_until < time.time())
        drawn = (ItemRow.response_id == ResponseRow.id, ItemRow.side == "output", ItemRow.picture.is_not(None))
        paid_for = select(ItemRow.id).where(*drawn).exists()
        orphans = update(ResponseRow).where(ResponseRow.state.in_(RUNNING), dead).values(ended_at=time.time())
        completed = orphans.where(paid_for).values(state="completed", ended={"completed_at": int(time.time())})
        failed = orphans.values(state="failed", ended={"error": SERVER_DIED}, idempotency_key=None)
        with self._database.write() as session:
            return sum(len(session.scalars(change.returning(ResponseRow.id)).all()) for change in (completed, failed))

    def forget_old(self, keep_s: float, keep_for_retries_s: float) -> None:
        """Delete what is older than that and runs no more; what is there for retries alone, after the second."""
        now = time.time()
        hidden = ~ResponseRow.stored & (ResponseRow.created_at < now - keep_for_retries_s)
        old = or_(ResponseRow.created_at < now - keep_s, hidden)
        with self._database.write() as session:
            _delete(session, select(ResponseRow.id).where(old, ResponseRow.state.not_in(RUNNING)))

    def picture_names(self) -> set[str]:
        """The files that came inside requests and are still wanted."""
        with self._database.read() as session:
            return set(session.scalars(select(FileRow.name)))


def _chain_query(response_id: str, key_id: str) -> Select[str, ItemRow]:
    mine = (ResponseRow.key_id == key_id) & ResponseRow.stored
    columns = (ResponseRow.id, ResponseRow.previous_id, ResponseRow.state)
    newest = select(*columns, literal(0).label("age")).where(ResponseRow.id == response_id, mine)
    chain = newest.cte("chain", recursive=True)
    older = select(*columns, chain.c.age + 1).where(ResponseRow.id == chain.c.previous_id, mine)
    chain = chain.union_all(older)
    return (
        select(chain.c.state, ItemRow)
        .outerjoin(ItemRow, ItemRow.response_id == chain.c.id)
        .order_by(chain.c.age.desc(), ItemRow.position)
    )


def _delete(session: Session, which: Select[str]) -> None:
    ids = list(session.scalars(which))
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        for table in (ItemRow, FileRow):
            session.execute(delete(table).where(table.response_id.in_(some)))
        session.execute(delete(ResponseRow).where(ResponseRow.id.in_(some)))


def _item_row(response_id: str, key_id: str, position: int, item: StoredItem) -> ItemRow:
    return ItemRow(
        response_id=response_id,
        key_id=key_id,
        item_id=item.id,
        side=item.side,
        position=position,
        body=dict(item.body),
        picture=item.picture,
    )


def _item(row: ItemRow) -> StoredItem:
    side: Side = "input" if row.side == "input" else "output"
    return StoredItem(side, row.body, row.picture)


def _response(row: ResponseRow) -> StoredResponse:
    return StoredResponse(
        id=row.id,
        key_id=row.key_id,
        previous_id=row.previous_id,
        state=row.state,
        background=row.background,
        echo=row.echo,
        created_at=int(row.created_at),
        ended=row.ended,
        events=row.events,
        idempotency_key=row.idempotency_key,
        fingerprint=row.fingerprint,
        stored=row.stored,
        heard=row.heard,
    )
