"""What became of each call, for whoever asks again: by its id, by its Idempotency-Key, or by sending it once more.

A call is recorded in the transaction that takes its hold, and its result in the one that charges it. So what a killed
server leaves behind is either charged and can be replayed, or neither.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.accounts.db import Database
from server.accounts.tables import CallRow, HoldRow

State = Literal["running", "succeeded", "failed", "cancelled"]
Write = Callable[[Session], None]  # a part of somebody else's transaction

SERVER_DIED = {
    "message": "The server stopped while it had this call; nothing was charged. Please send it again.",
    "type": "server_error",
    "param": None,
    "code": "server_died",
}
MOST_ALIKE = 50  # records of equal calls that are looked at


class CallTaken(Exception):
    """Another server has begun a call with this Idempotency-Key a moment ago."""


@dataclass(frozen=True, slots=True)
class CallId:
    """A call and what it is known by."""

    id: str
    key_id: str
    endpoint: str
    fingerprint: str
    idempotency_key: str | None

    @property
    def same(self) -> tuple[str, str, str]:
        """What it has in common with calls that ask for the same."""
        return self.key_id, self.endpoint, self.fingerprint


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call as the database knows it. `answer` is its result or, with the HTTP status, its error.

    `kept` says that a retry gets this answer; `heard`, that somebody still listened when it ended.
    """

    call: CallId
    state: State
    status: int | None
    answer: dict[str, Any] | None
    kept: bool
    heard: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call ended without a result."""

    state: Literal["failed", "cancelled"]
    status: int
    error: Mapping[str, Any]
    kept: bool


class Retried(Protocol):
    """What tells whether a retry is about a call that ended."""

    @property
    def kept(self) -> bool:
        """Whether a retry gets its answer."""

    @property
    def heard(self) -> bool:
        """Whether somebody still listened when it ended."""


Ended = TypeVar("Ended", bound=Retried)


class CallBook:
    """The records as one server process sees them. An Idempotency-Key is known for `keep_s`, and so is a call's id."""

    def __init__(self, database: Database, owner: str, keep_s: float) -> None:
        self._database = database
        self._owner = owner
        self._keep_s = keep_s

    def find(self, call_id: str, key_id: str) -> CallRecord | None:
        """A call of this key."""
        found = self._select(CallRow.id == call_id, CallRow.key_id == key_id)
        return found[0] if found else None

    def find_keyed(self, key_id: str, endpoint: str, idempotency_key: str) -> CallRecord | None:
        """The call that an Idempotency-Key names."""
        young = CallRow.created_at > time.time() - self._keep_s
        found = self._select(
            CallRow.key_id == key_id, CallRow.endpoint == endpoint, CallRow.idempotency_key == idempotency_key, young
        )
        return found[0] if found else None

    def find_alike(self, key_id: str, endpoint: str, fingerprint: str, within_s: float) -> list[CallRecord]:
        """Calls with the same parameters that ended lately, the newest first."""
        return self._select(
            CallRow.key_id == key_id,
            CallRow.endpoint == endpoint,
            CallRow.fingerprint == fingerprint,
            CallRow.ended_at > time.time() - within_s,
        )

    def beginning(self, call: CallId) -> Write:
        """Record that the call runs. Raises CallTaken inside the transaction."""

        def write(session: Session) -> None:
            if call.idempotency_key is not None:
                session.execute(self._release(call))
            session.add(self._row(call, "running"))
            try:
                session.flush()
            except IntegrityError as error:
                raise CallTaken(call.id) from error

        return write

    def success(self, call_id: str, answer: Mapping[str, Any], *, heard: bool) -> Write:
        """Record the result."""
        values = {"state": "succeeded", "status": 200, "answer": dict(answer), "kept": True, "heard": heard}

        def write(session: Session) -> None:
            session.execute(
                update(CallRow)
                .where(CallRow.id == call_id, CallRow.state == "running")
                .values(**values, ended_at=time.time())
            )

        return write

    def fail(self, call: CallId, failure: Failure, *, heard: bool) -> None:
        """Record the failure, unless the call has ended. Of one that failed before it was recorded at all, only a kept
        answer to an Idempotency-Key is worth a record."""
        with self._database.write() as session:
            row = session.get(CallRow, call.id)
            if row is None:
                if call.idempotency_key is None or not failure.kept:
                    return
                session.execute(self._release(call))
                session.add(row := self._row(call, "running"))
            if row.state != "running":
                return
            row.state, row.status, row.answer = failure.state, failure.status, dict(failure.error)
            row.kept, row.heard, row.ended_at = failure.kept, heard, time.time()
            if not failure.kept:
                row.idempotency_key = None

    def told(self, call_id: str, *, keep: bool) -> None:
        """A retry has been given this answer. What is not to be kept beyond that makes room for a new call."""
        values: dict[str, Any] = {"heard": True} if keep else {"heard": True, "kept": False, "idempotency_key": None}
        with self._database.write() as session:
            session.execute(update(CallRow).where(CallRow.id == call_id).values(**values))

    def fail_orphans(self, running: Collection[str] = ()) -> int:
        """Record as failed what nobody runs: no hold of it is held any more, and it is none of these calls, which this
        server runs. It may have been another server's, or one whose end could not be written down."""
        alive = select(HoldRow.call_id).where(HoldRow.call_id == CallRow.id, HoldRow.state == "held").exists()
        orphans = (CallRow.state == "running", CallRow.id.not_in(running), ~alive)
        values = {"state": "failed", "status": 500, "answer": SERVER_DIED, "idempotency_key": None}
        with self._database.write() as session:
            change = update(CallRow).where(*orphans).values(**values, ended_at=time.time()).returning(CallRow.id)
            return len(session.scalars(change).all())

    def forget_old(self) -> None:
        """Delete the records that nobody can ask for any more."""
        with self._database.write() as session:
            session.execute(
                delete(CallRow).where(CallRow.created_at < time.time() - self._keep_s, CallRow.state != "running")
            )

    def _select(self, *which: Any) -> list[CallRecord]:
        with self._database.read() as session:
            newest = select(CallRow).where(*which).order_by(CallRow.created_at.desc()).limit(MOST_ALIKE)
            return [_record(row) for row in session.scalars(newest)]

    def _release(self, call: CallId) -> Any:
        """Take the Idempotency-Key from a call so old that it is no longer known by it."""
        same = (CallRow.key_id == call.key_id, CallRow.endpoint == call.endpoint)
        old = (CallRow.idempotency_key == call.idempotency_key, CallRow.created_at <= time.time() - self._keep_s)
        return update(CallRow).where(*same, *old).values(idempotency_key=None)

    def _row(self, call: CallId, state: State) -> CallRow:
        return CallRow(
            id=call.id,
            key_id=call.key_id,
            endpoint=call.endpoint,
            fingerprint=call.fingerprint,
            idempotency_key=call.idempotency_key,
            owner=self._owner,
            state=state,
            kept=False,
            heard=False,
            created_at=time.time(),
        )


def choose_retried(alike: Sequence[Ended], *, another_expected: bool) -> Ended | None:
    """Which of equal calls, newest first, a retry is about; None when it must be drawn anew.

    One that ended unheard is the one whose connection was cut. Else it is the newest, if its answer is kept and no
    other call was told to come again.
    """
    kept = [record for record in alike if record.kept]
    unheard = [record for record in kept if not record.heard]
    if unheard:
        return unheard[0]
    return kept[0] if kept and kept[0] is alike[0] and not another_expected else None


def _record(row: CallRow) -> CallRecord:
    call = CallId(row.id, row.key_id, row.endpoint, row.fingerprint, row.idempotency_key)
    state: State = row.state  # type: ignore[assignment]  # the database checks it
    return CallRecord(call, state, row.status, row.answer, row.kept, row.heard, row.created_at)
