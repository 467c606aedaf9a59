"""The outcome of each call, for retries: looked up by its id, its Idempotency-Key or its fingerprint.

A call is recorded in the transaction that places its hold, and its result in the transaction that charges it. So after
a crash a call is either charged and replayable, or neither.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.accounts.clock_skew import is_near, reset_future_times
from server.accounts.db import PAGE, Database
from server.accounts.db_errors import is_duplicate
from server.accounts.fingerprints import as_sent, is_sent_alike
from server.accounts.gateways import live_owners
from server.accounts.paging import Page, read_own
from server.accounts.store import Store, Write
from server.accounts.tables import CallRow, HoldRow

State = Literal["running", "succeeded", "failed", "cancelled"]

SERVER_DIED = {
    "message": "The server stopped while it was processing this call; nothing was charged. Please send it again.",
    "type": "server_error",
    "param": None,
    "code": "server_died",
}
MAX_FINGERPRINT_MATCHES = 50  # calls with one fingerprint that are read


class IdempotencyKeyInUse(Exception):
    """Another server has just begun a call with this Idempotency-Key."""


@dataclass(frozen=True, slots=True)
class CallId:
    """A call's id, and the values by which a retry of it is recognised."""

    id: str
    key_id: str
    endpoint: str
    fingerprint: str
    idempotency_key: str | None

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return a value that is equal for calls of one key with the same parameters."""
        return self.key_id, self.endpoint, as_sent(self.fingerprint)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call as stored. `answer` is its result or, with the HTTP status, its error.

    `replayable`: a retry gets this answer. `delivered`: it has arrived whole at a client, or is on its way to one that
    was found later.
    """

    call: CallId
    state: State
    status: int | None
    answer: dict[str, Any] | None
    replayable: bool
    delivered: bool
    created_at: float
    owner: str  # the server that runs it, or ran it
    ended_at: float | None = None
    model: str | None = None  # as its hold names it; known to `find`, `list` and webhooks alone

    @property
    def id(self) -> str:
        """Return the call's id."""
        return self.call.id

    @property
    def idempotency_key(self) -> str | None:
        """Return the call's Idempotency-Key."""
        return self.call.idempotency_key


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call ended without a result."""

    state: Literal["failed", "cancelled"]
    status: int
    error: Mapping[str, Any]
    replayable: bool


class CallStore(Store):
    """The call records that one server process (`owner`) reads and writes. Each can be looked up for `retention_s`."""

    def __init__(self, database: Database, owner: str, retention_s: float) -> None:
        super().__init__(database, owner)
        self._retention_s = retention_s

    def find(self, call_id: str, key_id: str) -> CallRecord | None:
        """Return this key's call of this id with its model, None if there is none."""
        with self._database.read() as session:
            query = select(CallRow, HoldRow.model).outerjoin(HoldRow, HoldRow.call_id == CallRow.id)
            mine = query.where(CallRow.id == call_id, CallRow.key_id == key_id)
            return next((call_record(row, model) for row, model in session.execute(mine)), None)

    def page(self, key_id: str, endpoints: Collection[str], state: State | None, page: Page) -> list[CallRecord]:
        """Return this key's calls by age, and one more than `page` has room for if there are more. Raises
        UnknownEntry."""
        query = select(CallRow).where(CallRow.key_id == key_id, CallRow.endpoint.in_(endpoints))
        if state is not None:
            query = query.where(CallRow.state == state)
        with self._database.read() as session:
            rows = read_own(session, query, [CallRow.created_at, CallRow.id], page, key_id)
            held = select(HoldRow.call_id, HoldRow.model).where(HoldRow.call_id.in_({row.id for row in rows}))
            models = dict(session.execute(held).all())
            return [call_record(row, models.get(row.id)) for row in rows]

    def find_keyed(self, key_id: str, endpoint: str, idempotency_key: str) -> CallRecord | None:
        """Return the call with this Idempotency-Key, None if there is none within the retention."""
        recent = is_near(CallRow.created_at, self._database.clock, self._retention_s)
        records = self._select(
            CallRow.key_id == key_id, CallRow.endpoint == endpoint, CallRow.idempotency_key == idempotency_key, recent
        )
        return records[0] if records else None

    def find_by_fingerprint(self, key_id: str, endpoint: str, fingerprint: str, within_s: float) -> list[CallRecord]:
        """Return calls with an equal body that ended in the last `within_s` seconds, newest first."""
        return self._select(
            CallRow.key_id == key_id,
            CallRow.endpoint == endpoint,
            is_sent_alike(CallRow.fingerprint, fingerprint),
            is_near(CallRow.ended_at, self._database.clock, within_s),
        )

    def begin_write(self, call: CallId) -> Write:
        """Return the write that records that the call runs. It raises IdempotencyKeyInUse."""

        def write(session: Session) -> None:
            if call.idempotency_key is not None:
                session.execute(self._free_idempotency_key(call))
            session.add(self._row(call, "running"))
            _flush_new(session, call)

        return write

    def success_write(self, call_id: str, answer: Mapping[str, Any], *, delivered: bool) -> Write:
        """Return the write that records the result, if the call still runs."""
        running = update(CallRow).where(CallRow.id == call_id, CallRow.state == "running")
        ended = running.values(state="succeeded", status=200, answer=dict(answer), replayable=True, delivered=delivered)

        def write(session: Session) -> None:
            session.execute(ended.values(ended_at=self.now()))

        return write

    def fail(self, call: CallId, failure: Failure, *, delivered: bool) -> None:
        """Record the failure, unless the call has ended. A call that failed before it was recorded gets a record only
        if it has an Idempotency-Key and its answer is replayable."""
        with self._database.write() as session:
            row = session.get(CallRow, call.id)
            if row is None:
                if call.idempotency_key is None or not failure.replayable:
                    return
                session.execute(self._free_idempotency_key(call))
                session.add(row := self._row(call, "running"))
            if row.state != "running":
                return
            row.state, row.status, row.answer = failure.state, failure.status, dict(failure.error)
            row.replayable, row.delivered, row.ended_at = failure.replayable, delivered, self.now()
            if not failure.replayable:
                row.idempotency_key = None

    def record_ended(self, call: CallId, status: int, answer: Mapping[str, Any]) -> None:
        """Record a call that had no row while it ran, for retries: its answer or its error. Raises
        IdempotencyKeyInUse."""
        row = self._row(call, "succeeded" if status == 200 else "failed")
        row.status, row.answer, row.replayable, row.ended_at = status, dict(answer), True, self.now()
        with self._database.write() as session:
            session.execute(self._free_idempotency_key(call))
            session.add(row)
            _flush_new(session, call)

    def mark_delivered(self, call_id: str, *, delivered: bool = True) -> bool:
        """Record that the answer has arrived, or has not after all. Returns False if that was known, as when another
        retry was just given it."""
        changed = (CallRow.id == call_id, CallRow.delivered.is_(not delivered))
        return self._write(update(CallRow).where(*changed).values(delivered=delivered)) > 0

    def free(self, call_id: str) -> None:
        """Let no other retry get this answer: its Idempotency-Key is free for a new call."""
        self._write(update(CallRow).where(CallRow.id == call_id).values(replayable=False, idempotency_key=None))

    def fail_orphans(self, running: Collection[str] = ()) -> int:
        """Record as failed each call that is marked running but no server runs: its hold is no longer held, and its
        server died; or it is this server's but not in `running`, since its end could not be recorded. Returns how
        many."""
        held = select(HoldRow.call_id).where(HoldRow.call_id == CallRow.id, HoldRow.state == "held").exists()
        lost = CallRow.owner.not_in(live_owners()) | ((CallRow.owner == self._owner) & CallRow.id.not_in(running))
        orphans = (CallRow.state == "running", lost, ~held)
        values = {"state": "failed", "status": 500, "answer": SERVER_DIED, "idempotency_key": None}
        return self._write(update(CallRow).where(*orphans).values(**values, ended_at=self.now()))

    def delete_expired(self, limit: int = PAGE) -> int:
        """Delete records that are past their retention; returns how many. If as many as `limit`, there may be more."""
        expired = CallRow.created_at < self._database.clock.earliest() - self._retention_s
        page = select(CallRow.id).where(expired, CallRow.state != "running").limit(limit)
        with self._database.write() as session:
            reset_future_times(session, CallRow.created_at, self._database.clock, self._retention_s)
            deleted = session.scalars(delete(CallRow).where(CallRow.id.in_(page)).returning(CallRow.id))
            return len(deleted.all())

    def _select(self, *conditions: Any) -> list[CallRecord]:
        with self._database.read() as session:
            newest = (
                select(CallRow).where(*conditions).order_by(CallRow.created_at.desc()).limit(MAX_FINGERPRINT_MATCHES)
            )
            return [call_record(row) for row in session.scalars(newest)]

    def _free_idempotency_key(self, call: CallId) -> Any:
        """Remove the Idempotency-Key from a call that is past its retention."""
        same_route = (CallRow.key_id == call.key_id, CallRow.endpoint == call.endpoint)
        expired = (
            CallRow.idempotency_key == call.idempotency_key,
            ~is_near(CallRow.created_at, self._database.clock, self._retention_s),
        )
        return update(CallRow).where(*same_route, *expired).values(idempotency_key=None)

    def _row(self, call: CallId, state: State) -> CallRow:
        now, nobody = self.now(), {"replayable": False, "delivered": False}
        return CallRow(**asdict(call), owner=self._owner, state=state, created_at=now, **nobody)


def _flush_new(session: Session, call: CallId) -> None:
    try:
        session.flush()
    except IntegrityError as error:
        if not is_duplicate(error.orig):
            raise
        raise IdempotencyKeyInUse(call.id) from error


def call_record(row: CallRow, model: str | None = None) -> CallRecord:
    """Return the database row as a `CallRecord`."""
    return row.to(CallRecord, call=row.to(CallId), model=model)
