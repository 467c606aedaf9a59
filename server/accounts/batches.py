"""Batches and their lines. A line's answer is recorded once; until then its call may be sent again, with the same
Idempotency-Key, so that it runs and is charged once."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from server.accounts.clock_skew import MARGIN_S, is_near, reset_future_times
from server.accounts.db import PAGE
from server.accounts.fingerprints import is_sent_alike
from server.accounts.gateways import live_owners
from server.accounts.ledger import lock_key
from server.accounts.paging import Page, read_own
from server.accounts.response_tables import BatchLineRow, BatchRow
from server.accounts.store import Store

BatchState = Literal["in_progress", "cancelling", "completed", "cancelled", "expired"]
EndState = Literal["completed", "cancelled", "expired"]
RUNNING = ("in_progress", "cancelling")
CANCELLED = ("cancelling", "cancelled")
MAX_FINGERPRINT_MATCHES = 50  # batches with one fingerprint that are read


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A call of a batch. `answer` is JSON, as the call's client would read it; None until the call has ended."""

    position: int
    custom_id: str
    url: str
    body: str
    status: int | None = None
    request_id: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with the counts of its lines. Times are Unix seconds. A retry of its request is recognised by its
    fingerprint and its Idempotency-Key."""

    id: str
    key_id: str
    endpoint: str | None
    source: str | None
    base: str
    labels: Mapping[str, Any]
    total: int
    created_at: float
    expires_at: float
    state: BatchState = "in_progress"
    cancelling_at: float | None = None
    ended_at: float | None = None
    completed: int = 0
    failed: int = 0
    fingerprint: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Repeatable:
    """Which earlier batches a request may be for: those of the last `within_s` seconds. Without an Idempotency-Key, one
    whose answer was not lost only if the request says that it is a retry."""

    within_s: float
    says_retry: bool


class BatchStore(Store):
    """The batches that one server process (`owner`) reads, writes and runs."""

    def find_earlier(self, batch: Batch, earlier: Repeatable) -> Batch | None:
        """Return the batch of this API key that a request for this one repeats: the one with its Idempotency-Key,
        whatever its body was; without a key an equal one. An answer that was lost counts as lost no more."""
        with self._database.write() as session:
            return self._find_earlier(session, batch, earlier)

    def create(self, batch: Batch, lines: Sequence[BatchLine], earlier: Repeatable | None = None) -> Batch:
        """Add a batch with its lines and return it, unless `find_earlier` finds one by now: then return that."""
        with self._database.write() as session:
            if earlier and (found := self._find_earlier(session, batch, earlier)):
                return found
            if batch.idempotency_key is not None:  # one that had it is too old to be found
                used = (BatchRow.key_id == batch.key_id, BatchRow.idempotency_key == batch.idempotency_key)
                session.execute(update(BatchRow).where(*used).values(idempotency_key=None))
            counted = {"completed", "failed"}  # by the lines
            session.add(BatchRow(**{name: value for name, value in asdict(batch).items() if name not in counted}))
            session.flush()
            session.add_all(BatchLineRow(batch_id=batch.id, **asdict(line)) for line in lines)
            return batch

    def mark_lost(self, batch_id: str) -> None:
        """Record that the answer to the request for a batch has not arrived."""
        self._write(update(BatchRow).where(BatchRow.id == batch_id).values(answer_lost=True))

    def find(self, batch_id: str, key_id: str | None) -> Batch | None:
        """Return this key's batch, None if there is none. Without a key, that of any."""
        with self._database.read() as session:
            row = session.get(BatchRow, batch_id)
            return None if row is None or key_id not in {None, row.key_id} else _counted(session, [row])[0]

    def page(self, key_id: str | None, page: Page) -> list[Batch]:
        """Return this key's batches by age, and one more than the page has room for if there are more. Without a key,
        those of all. Raises UnknownEntry."""
        query = select(BatchRow) if key_id is None else select(BatchRow).where(BatchRow.key_id == key_id)
        with self._database.read() as session:
            return _counted(session, read_own(session, query, [BatchRow.created_at, BatchRow.id], page, key_id))

    def cancel(self, batch_id: str, key_id: str) -> None:
        """Ask for the end of a batch. One that has ended stays as it is."""
        running = (BatchRow.id == batch_id, BatchRow.key_id == key_id, BatchRow.state == "in_progress")
        self._write(update(BatchRow).where(*running).values(state="cancelling", cancelling_at=self.now()))

    def claim(self) -> list[Batch]:
        """Take the batches that no server runs, and return all that this one runs."""
        with self._database.write() as session:
            free = or_(BatchRow.owner.is_(None), BatchRow.owner.not_in(live_owners()))
            session.execute(update(BatchRow).where(BatchRow.state.in_(RUNNING), free).values(owner=self._owner))
            mine = select(BatchRow).where(BatchRow.state.in_(RUNNING), BatchRow.owner == self._owner)
            return [_batch(row) for row in session.scalars(mine.order_by(BatchRow.created_at))]

    def any_to_claim(self) -> bool:
        """Return whether any batch has not ended, so that `claim` may find one to run."""
        with self._database.read() as session:
            return session.scalar(select(BatchRow.id).where(BatchRow.state.in_(RUNNING)).limit(1)) is not None

    def end_due(self, batch_id: str) -> EndState | None:
        """Return how a batch must end though it has lines left, None if they may run."""
        with self._database.read() as session:
            row = session.get(BatchRow, batch_id)
        if row is None or row.state not in RUNNING or row.state == "cancelling":
            return "cancelled"
        now = self._database.clock.latest()
        clock_skew = row.created_at > now + MARGIN_S  # what is written of its calls may be forgotten before it expires
        return "expired" if clock_skew or now > row.expires_at else None

    def pending(self, batch_id: str, after: int, limit: int) -> list[BatchLine]:
        """Return the next lines without an answer, after a position."""
        query = select(BatchLineRow).where(BatchLineRow.status.is_(None))
        return self._lines(query, batch_id, after, limit)

    def answered(self, batch_id: str, after: int, limit: int, *, all_lines: bool) -> list[BatchLine]:
        """Return the next lines that have ended or, with `all_lines`, all lines, after a position."""
        query = select(BatchLineRow)
        return self._lines(
            query if all_lines else query.where(BatchLineRow.status.is_not(None)), batch_id, after, limit
        )

    def record(self, batch_id: str, line: BatchLine) -> None:
        """Record the answer of a line, unless it has one."""
        values = {"status": line.status, "request_id": line.request_id, "answer": line.answer}
        row = (BatchLineRow.batch_id == batch_id, BatchLineRow.position == line.position)
        self._write(update(BatchLineRow).where(*row, BatchLineRow.status.is_(None)).values(**values))

    def end(self, batch_id: str, state: EndState) -> None:
        """End a batch that runs."""
        running = (BatchRow.id == batch_id, BatchRow.state.in_(RUNNING))
        self._write(update(BatchRow).where(*running).values(state=state, ended_at=self.now()))

    def delete_older(self, max_age_s: float, limit: int = PAGE) -> int:
        """Delete batches that have ended and are older than this; returns how many. If as many as `limit`, there may be
        more."""
        old = BatchRow.created_at < self._database.clock.earliest() - max_age_s
        with self._database.write() as session:
            reset_future_times(session, BatchRow.created_at, self._database.clock, max_age_s)
            ids = list(session.scalars(select(BatchRow.id).where(old, BatchRow.state.not_in(RUNNING)).limit(limit)))
            session.execute(delete(BatchLineRow).where(BatchLineRow.batch_id.in_(ids)))
            session.execute(delete(BatchRow).where(BatchRow.id.in_(ids)))
            return len(ids)

    def _find_earlier(self, session: Session, batch: Batch, earlier: Repeatable) -> Batch | None:
        lock_key(session, batch.key_id)  # else two requests at once would both find none
        same = (BatchRow.key_id == batch.key_id, BatchRow.idempotency_key == batch.idempotency_key)
        query = select(BatchRow).where(*same, is_near(BatchRow.created_at, self._database.clock, earlier.within_s))
        if batch.idempotency_key is not None:
            found = session.scalar(query)
        else:
            equal = query.where(is_sent_alike(BatchRow.fingerprint, batch.fingerprint))
            newest = equal.order_by(BatchRow.created_at.desc()).limit(MAX_FINGERPRINT_MATCHES)
            found = _choose_equal(session.scalars(newest).all(), says_retry=earlier.says_retry)
        if found is None:
            return None
        found.answer_lost = False
        return _counted(session, [found])[0]

    def _lines(self, query: Any, batch_id: str, after: int, limit: int) -> list[BatchLine]:
        chosen = query.where(BatchLineRow.batch_id == batch_id, BatchLineRow.position > after)
        with self._database.read() as session:
            rows = session.scalars(chosen.order_by(BatchLineRow.position).limit(limit))
            return [row.to(BatchLine) for row in rows]


def _choose_equal(newest: Sequence[BatchRow], *, says_retry: bool) -> BatchRow | None:
    """Choose the batch that a request without an Idempotency-Key repeats. One that was cancelled is not wanted."""
    lost = [row for row in newest if row.answer_lost and row.state not in CANCELLED]
    if lost:
        return lost[0]
    return newest[0] if says_retry and newest and newest[0].state not in CANCELLED else None


def _counted(session: Session, rows: Sequence[BatchRow]) -> list[Batch]:
    """Return the batches with the counts of their lines."""
    good = func.sum(case((BatchLineRow.status < 400, 1), else_=0))
    theirs = BatchLineRow.batch_id.in_([row.id for row in rows])
    query = select(BatchLineRow.batch_id, good, func.count()).where(theirs, BatchLineRow.status.is_not(None))
    found = session.execute(query.group_by(BatchLineRow.batch_id))
    counts = {name: (int(done), int(ended - done)) for name, done, ended in found}
    return [_batch(row, *counts.get(row.id, (0, 0))) for row in rows]


def _batch(row: BatchRow, completed: int = 0, failed: int = 0) -> Batch:
    return row.to(Batch, completed=completed, failed=failed)
