"""Stored responses and their chains. A key never sees another key's response.

A response is recorded when it begins, each output item when it is finished, and the end once: a response that has
ended, or was cancelled, is not ended again. So after a crash, a response shows how far it came.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import CTE, ColumnElement, Select, delete, literal, or_, select, update
from sqlalchemy.orm import Session

from server.accounts.clock_skew import is_near, reset_future_times
from server.accounts.conversations import add_response_items
from server.accounts.db import PAGE, Database
from server.accounts.fingerprints import is_sent_alike
from server.accounts.gateways import live_owners
from server.accounts.paging import Page, read_own
from server.accounts.response_items import StoredItem
from server.accounts.response_tables import FileRow, ItemRow, ResponseRow
from server.accounts.store import Store, Write
from server.schemas.response_events import Event
from server.schemas.response_object import ResponseEcho, ResponseOutcome

RUNNING = ("queued", "in_progress")
MAX_FINGERPRINT_MATCHES = 50  # responses with one fingerprint that are read
SERVER_DIED = {
    "code": "server_error",
    "message": "The server stopped while it ran this response; what is not in its output was not charged.",
}
END_LOST = {
    "code": "server_error",
    "message": "The end of this response could not be recorded; what is not in its output was not charged.",
}


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """How a response ended: its state, and the fields that are known at its end only."""

    state: str
    ended: ResponseOutcome


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as stored. `ended` is None while it runs, then the fields that are known at its end only.

    A request with the same Idempotency-Key and parameters (`fingerprint`) gets this response again, unless it failed.
    One that is not `stored` is there for such retries only. `delivered`: as of a `CallRecord`.
    """

    id: str
    key_id: str
    previous_id: str | None
    state: str
    background: bool
    echo: ResponseEcho
    created_at: int
    owner: str = ""  # the server that runs it, or ran it
    ended: ResponseOutcome | None = None
    events: Sequence[Event] | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    stored: bool = True
    delivered: bool = False
    conversation_id: str | None = None  # which its items are added to when it has ended
    title: str | None = None

    @property
    def replayable(self) -> bool:
        """Return whether a retry gets this answer."""
        return self.state in {"completed", "incomplete"}

    @property
    def survives_disconnect(self) -> bool:
        """Return whether the response continues without a client: the client will ask for it later."""
        return self.background or self.idempotency_key is not None

    @property
    def running(self) -> bool:
        """Return whether the response has not ended; a queued one counts as running."""
        return self.state in RUNNING


class ResponseStore(Store):
    """The response records that one server process (`owner`) reads and writes."""

    def __init__(self, database: Database, owner: str) -> None:
        super().__init__(database, owner)
        self._unrecorded: dict[str, ResponseEnd] = {}

    def begin(self, response: StoredResponse, inputs: Sequence[StoredItem]) -> None:
        """Record a response that runs, with its input items."""
        known = {name: value for name, value in asdict(response).items() if value is not None}  # JSON has a null too
        with self._database.write() as session:
            session.add(ResponseRow(**known | {"owner": self._owner, "delivered": False}))
            session.flush()
            session.add_all(_item_row(response.id, response.key_id, i, item) for i, item in enumerate(inputs))
            names = {name for item in inputs for name in item.files}
            session.add_all(FileRow(name=name, response_id=response.id) for name in names)

    def start(self, response_id: str) -> None:
        """Change a queued response to in_progress."""
        queued = (ResponseRow.id == response_id, ResponseRow.state == "queued")
        self._write(update(ResponseRow).where(*queued).values(state="in_progress"))

    def output_write(self, response: StoredResponse, position: int, item: StoredItem) -> Write:
        """Return the write that records a finished item. `position` continues the numbering of the inputs."""

        def write(session: Session) -> None:
            if session.get(ResponseRow, response.id) is not None:  # it may have been deleted meanwhile
                session.add(_item_row(response.id, response.key_id, position, item))

        return write

    def add_output(self, response: StoredResponse, position: int, item: StoredItem) -> None:
        """Record a finished item as `output_write` does, in its own transaction."""
        with self._database.write() as session:
            self.output_write(response, position, item)(session)

    def finish(self, response_id: str, state: str, ended: ResponseOutcome) -> bool:
        """Record the end, and add its items to its conversation. Returns False when it had ended before, or was
        deleted."""
        running = (ResponseRow.id == response_id, ResponseRow.state.in_(RUNNING))
        values = {"state": state, "ended": dict(ended), "ended_at": self.now()}
        statement = update(ResponseRow).where(*running).values(**values)
        if state in {"failed", "cancelled"}:
            statement = statement.values(idempotency_key=None)
        with self._database.write() as session:
            ended_now = session.scalars(statement.returning(ResponseRow.id)).all()
            if state in {"completed", "incomplete"}:
                add_response_items(session, ended_now, self.now())
        return bool(ended_now)

    def finish_later(self, response_id: str, end: ResponseEnd) -> None:
        """Keep an end that could not be recorded, for `finish_unrecorded` to try again; the database need not be
        there."""
        self._unrecorded[response_id] = end

    def finish_unrecorded(self) -> None:
        """Record the ends that could not be recorded when they came."""
        for response_id, end in list(self._unrecorded.items()):
            self.finish(response_id, end.state, end.ended)
            del self._unrecorded[response_id]

    @property
    def unrecorded_ids(self) -> frozenset[str]:
        """Return the ids of responses that have ended, but are not recorded so."""
        return frozenset(self._unrecorded)

    def running_here(self) -> set[str]:
        """Return the ids of this server's responses that have not ended by their records."""
        running = (ResponseRow.owner == self._owner, ResponseRow.state.in_(RUNNING))
        with self._database.read() as session:
            return set(session.scalars(select(ResponseRow.id).where(*running)))

    def save_events(self, response_id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Record the events that were sent, so that the stream can be read again."""
        self._write(update(ResponseRow).where(ResponseRow.id == response_id).values(events=list(events)))

    def find(self, response_id: str, key_id: str) -> tuple[StoredResponse, list[StoredItem]] | None:
        """Return a stored response of this key, with all its items in order; None if there is none."""
        return self._find(ResponseRow.id == response_id, ResponseRow.key_id == key_id, ResponseRow.stored.is_(True))

    def page(
        self, key_id: str, page: Page, *, roots_only: bool = False, root: str | None = None
    ) -> list[tuple[StoredResponse, list[StoredItem]]]:
        """Return this key's stored responses with their inputs, and one more than the page has room for if there are
        more. `root`: only this one and those that continue it. Raises UnknownEntry."""
        row = ResponseRow
        query = select(row).where(row.key_id == key_id, row.stored)
        if roots_only:
            query = query.where(row.previous_id.is_(None))
        if root is not None:
            query = query.where(row.id.in_(select(_response_tree(root, key_id).c.id)))
        with self._database.read() as session:
            rows = read_own(session, query, [row.created_at, row.id], page, key_id)
            ids = [each.id for each in rows]
            items = select(ItemRow).where(ItemRow.response_id.in_(ids), ItemRow.side == "input").order_by(ItemRow.id)
            inputs: dict[str, list[StoredItem]] = {each: [] for each in ids}
            for item in session.scalars(items):
                inputs[item.response_id].append(item.to(StoredItem))
            return [(_response(each), inputs[each.id]) for each in rows]

    def find_keyed(self, idempotency_key: str, key_id: str) -> tuple[StoredResponse, list[StoredItem]] | None:
        """Return the response of this Idempotency-Key, stored or not; None if there is none."""
        return self._find(ResponseRow.idempotency_key == idempotency_key, ResponseRow.key_id == key_id)

    def find_by_fingerprint(self, key_id: str, fingerprint: str, within_s: float) -> list[StoredResponse]:
        """Return responses with an equal body and without an Idempotency-Key that ended in the last `within_s` seconds,
        newest first."""
        ended_lately = is_near(ResponseRow.ended_at, self._database.clock, within_s)
        recent = (is_sent_alike(ResponseRow.fingerprint, fingerprint), ended_lately)
        own = (ResponseRow.key_id == key_id, ResponseRow.idempotency_key.is_(None))
        newest = (
            select(ResponseRow)
            .where(*own, *recent)
            .order_by(ResponseRow.created_at.desc())
            .limit(MAX_FINGERPRINT_MATCHES)
        )
        with self._database.read() as session:
            return [_response(row) for row in session.scalars(newest)]

    def mark_delivered(self, response_id: str, *, delivered: bool = True) -> bool:
        """Record that the answer has arrived, or has not after all. Returns False if that was known, as when another
        retry was just given it."""
        changed = (ResponseRow.id == response_id, ResponseRow.delivered.is_(not delivered))
        return self._write(update(ResponseRow).where(*changed).values(delivered=delivered)) > 0

    def find_for_retry(self, response_id: str) -> tuple[StoredResponse, list[StoredItem]] | None:
        """Return a response with its items, stored or not; None if it was deleted."""
        return self._find(ResponseRow.id == response_id)

    def _find(self, *conditions: ColumnElement[bool]) -> tuple[StoredResponse, list[StoredItem]] | None:
        joined = select(ResponseRow, ItemRow).outerjoin(ItemRow, ItemRow.response_id == ResponseRow.id)
        with self._database.read() as session:
            rows = session.execute(joined.where(*conditions).order_by(ItemRow.position)).all()
            return (_response(rows[0][0]), [row.to(StoredItem) for _, row in rows if row is not None]) if rows else None

    def find_chain(self, response_id: str, key_id: str) -> tuple[str, list[StoredItem]] | None:
        """Return the state of a response, and the items of it and of all its predecessors, oldest first, in one query;
        None if there is no such response."""
        with self._database.read() as session:
            rows = session.execute(_chain_query(response_id, key_id)).all()
        if not rows:
            return None
        return rows[-1][0], [row.to(StoredItem) for _, row in rows if row is not None]

    def find_items(self, item_ids: Iterable[str], key_id: str) -> dict[str, StoredItem]:
        """Return items of this key by id; unknown ids are left out."""
        stored = select(ResponseRow.id).where(ResponseRow.id == ItemRow.response_id, ResponseRow.stored).exists()
        own = (ItemRow.item_id.in_(set(item_ids)), ItemRow.key_id == key_id)
        query = select(ItemRow).where(*own, stored).order_by(ItemRow.id)
        with self._database.read() as session:
            return {row.item_id: row.to(StoredItem) for row in session.scalars(query)}

    def name(self, response_id: str, key_id: str, title: str | None) -> bool:
        """Give a stored response a title, or take it away. Returns False when there is none."""
        mine = (ResponseRow.id == response_id, ResponseRow.key_id == key_id, ResponseRow.stored)
        return self._write(update(ResponseRow).where(*mine).values(title=title)) > 0

    def find_tree(self, response_id: str, key_id: str) -> list[str]:
        """Return the ids of a stored response and of all that continue it, the last ones first."""
        tree = _response_tree(response_id, key_id)
        with self._database.read() as session:
            return list(session.scalars(select(tree.c.id).order_by(tree.c.depth.desc())))

    def delete(self, response_id: str, key_id: str) -> bool:
        """Delete a stored response and its items. Returns False when there is none."""
        with self._database.write() as session:
            row = session.get(ResponseRow, response_id)
            if row is None or row.key_id != key_id or not row.stored:
                return False
            _delete(session, select(ResponseRow.id).where(ResponseRow.id == response_id))
        return True

    def finish_orphans(self) -> int:
        """End the responses of servers that do not run any more; returns how many."""
        return self._give_up(ResponseRow.owner.not_in(live_owners()), SERVER_DIED)

    def finish_lost(self, response_ids: Collection[str]) -> int:
        """End responses that do not run any more and whose end is not known; returns how many."""
        return self._give_up(ResponseRow.id.in_(response_ids), END_LOST)

    def _give_up(self, which: ColumnElement[bool], error: Mapping[str, str]) -> int:
        """End running responses with an error, and return how many. A response with an image was charged for it, so it
        is completed as it is: a retry is not charged again."""
        images = (ItemRow.response_id == ResponseRow.id, ItemRow.side == "output", ItemRow.image.is_not(None))
        charged = select(ItemRow.id).where(*images).exists()
        now = self.now()
        orphans = update(ResponseRow).where(ResponseRow.state.in_(RUNNING), which).values(ended_at=now)
        with self._database.write() as session:
            completed = orphans.where(charged).values(state="completed", ended={"completed_at": int(now)})
            failed = orphans.values(state="failed", ended={"error": error}, idempotency_key=None)
            delivered = session.scalars(completed.returning(ResponseRow.id)).all()
            add_response_items(session, delivered, now)
            return len(delivered) + len(session.scalars(failed.returning(ResponseRow.id)).all())

    def delete_expired(self, max_age_s: float, max_retry_age_s: float, limit: int = PAGE) -> int:
        """Delete ended responses that are older than this; returns how many. Those that are not `stored` have the
        second limit. If as many as `limit`, there may be more."""
        now = self._database.clock.earliest()
        for_retries = ~ResponseRow.stored & (ResponseRow.created_at < now - max_retry_age_s)
        expired = or_(ResponseRow.created_at < now - max_age_s, for_retries)
        page = select(ResponseRow.id).where(expired, ResponseRow.state.not_in(RUNNING)).limit(limit)
        with self._database.write() as session:
            reset_future_times(session, ResponseRow.created_at, self._database.clock, max_age_s)
            return _delete(session, page)

    def referenced_files(self, names: Collection[str]) -> set[str]:
        """Return those of the named files that came inside requests and that a response still needs."""
        with self._database.read() as session:
            return set(session.scalars(select(FileRow.name).where(FileRow.name.in_(names))))


def _chain_query(response_id: str, key_id: str) -> Select[str, ItemRow]:
    own = (ResponseRow.key_id == key_id) & ResponseRow.stored
    columns = (ResponseRow.id, ResponseRow.previous_id, ResponseRow.state)
    newest = select(*columns, literal(0).label("age")).where(ResponseRow.id == response_id, own)
    chain = newest.cte("chain", recursive=True)
    older = select(*columns, chain.c.age + 1).where(ResponseRow.id == chain.c.previous_id, own)
    chain = chain.union_all(older)
    return (
        select(chain.c.state, ItemRow)
        .outerjoin(ItemRow, ItemRow.response_id == chain.c.id)
        .order_by(chain.c.age.desc(), ItemRow.position)
    )


def _response_tree(response_id: str, key_id: str) -> CTE:
    """Return the ids of a stored response and of all that continue it, with how far each is from it (`depth`)."""
    own = (ResponseRow.key_id == key_id) & ResponseRow.stored
    root = select(ResponseRow.id, literal(0).label("depth")).where(ResponseRow.id == response_id, own)
    tree = root.cte("tree", recursive=True)
    return tree.union_all(select(ResponseRow.id, tree.c.depth + 1).where(ResponseRow.previous_id == tree.c.id, own))


def _delete(session: Session, query: Select[str]) -> int:
    ids = list(session.scalars(query))
    for start in range(0, len(ids), 500):
        batch = ids[start : start + 500]
        for table in (ItemRow, FileRow):
            session.execute(delete(table).where(table.response_id.in_(batch)))
        session.execute(delete(ResponseRow).where(ResponseRow.id.in_(batch)))
    return len(ids)


def _item_row(response_id: str, key_id: str, position: int, item: StoredItem) -> ItemRow:
    return ItemRow(response_id=response_id, key_id=key_id, item_id=item.id, position=position, **asdict(item))


def _response(row: ResponseRow) -> StoredResponse:
    return row.to(StoredResponse, created_at=int(row.created_at))
