"""Holds and charges. The database is the only truth: there is no balance to cache and no refund to call.

A hold is a row that its owner (one server process) renews while the call runs. A charge is an entry, written in the
transaction that records the call's results and moves the hold from held to captured; if no row moves, somebody else has
decided about this call, and nothing is written.

What a key has left is its budget less its entries and its held holds, summed in the transaction that adds a hold. That
transaction locks the key's row (FOR UPDATE; on SQLite, BEGIN IMMEDIATE locks everything), so two calls can't both see
the last of a budget. Both sums are one statement, so one snapshot: no call can be captured between them and be counted
in neither.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Update, func, select, update
from sqlalchemy.orm import Session

from server.accounts.db import Database
from server.accounts.tables import EntryRow, HoldRow, KeyRow, ResultRow


class InsufficientBudget(Exception):
    """The key can't pay. Amounts in 1/10000 CNY."""

    def __init__(self, available: int, price: int) -> None:
        super().__init__(f"{available} available, {price} needed")
        self.available = available
        self.price = price


class HoldLost(Exception):
    """The hold is no longer this owner's: voided by a sweep, or settled already."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a hold is for. The price is a snapshot: a later catalog does not change it."""

    call_id: str
    key_id: str
    endpoint: str
    model: str
    price: int


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A file that is on disk and synced."""

    name: str
    media_type: str
    width_px: int
    height_px: int
    size_bytes: int
    sha256: str
    position: int


def _nothing(_: object) -> None:
    return None


class Ledger:
    """The ledger as one server process sees it. `reach` is called at named moments, for tests that pull the plug."""

    def __init__(
        self, database: Database, owner: str, lease_s: float = 60, reach: Callable[[str], None] = _nothing
    ) -> None:
        self._database = database
        self._owner = owner
        self._lease_s = lease_s
        self._reach = reach

    def hold(self, call: Call, also: Callable[[Session], None] = _nothing) -> None:
        """Set the price aside, and write in the same transaction what `also` does. Raises InsufficientBudget."""
        now = time.time()
        with self._database.write() as session:
            budget = session.scalar(select(KeyRow.budget).where(KeyRow.id == call.key_id).with_for_update())
            if budget is not None:
                available = budget - used(session, call.key_id)
                if available < call.price:
                    raise InsufficientBudget(available, call.price)
            session.add(
                HoldRow(
                    call_id=call.call_id,
                    key_id=call.key_id,
                    endpoint=call.endpoint,
                    model=call.model,
                    price=call.price,
                    owner=self._owner,
                    lease_until=now + self._lease_s,
                    state="held",
                    created_at=now,
                )
            )
            also(session)

    def capture(self, call_id: str, results: Sequence[StoredResult], also: Callable[[Session], None] = _nothing) -> int:
        """Charge the call, record its results and do `also`, all or nothing. Returns the price. Raises HoldLost."""
        if not results:
            raise ValueError(f"{call_id} has no results, and what was not delivered is not charged")
        now = time.time()
        with self._database.write() as session:
            mine = (HoldRow.call_id == call_id, HoldRow.state == "held", HoldRow.owner == self._owner)
            if _moved(session, update(HoldRow).where(*mine).values(state="captured", settled_at=now)) != 1:
                raise HoldLost(call_id)
            hold = session.get_one(HoldRow, call_id)
            session.add(
                EntryRow(call_id=call_id, key_id=hold.key_id, model=hold.model, amount=hold.price, created_at=now)
            )
            for result in results:
                session.add(_result_row(result, hold, now))
            also(session)
            session.flush()
            self._reach("before-capture-commit")
            price = hold.price
        self._reach("after-capture-commit")
        return price

    def void(self, call_id: str, reason: str) -> bool:
        """Give the hold back. False when there is none to give back."""
        return self._void(reason, HoldRow.call_id == call_id, HoldRow.owner == self._owner) == 1

    def renew(self, running: Collection[str]) -> int:
        """Extend the leases of this owner's holds for these calls. One whose call has ended lapses: it was to be void,
        and that could not be written down."""
        mine = (HoldRow.owner == self._owner, HoldRow.state == "held", HoldRow.call_id.in_(running))
        with self._database.write() as session:
            return _moved(session, update(HoldRow).where(*mine).values(lease_until=time.time() + self._lease_s))

    def sweep(self) -> int:
        """Void every hold whose lease ran out, whoever owns it."""
        return self._void("lease_expired", HoldRow.lease_until < time.time())

    def void_orphans(self) -> int:
        """At a start: void what dead servers left held.

        A SQLite home has one server, so every other owner is dead. Servers that share a PostgreSQL may be alive:
        there, only a lease that ran out says that its owner is not.
        """
        if not self._database.is_sqlite:
            return self.sweep()
        return self._void("server_died", HoldRow.owner != self._owner)

    def find_result(self, name: str) -> StoredResult | None:
        """The record of a stored picture."""
        with self._database.read() as session:
            row = session.get(ResultRow, name)
        if row is None or row.deleted_at is not None:
            return None
        return StoredResult(
            row.name, row.media_type, row.width_px, row.height_px, row.size_bytes, row.sha256, row.position
        )

    def result_names(self) -> set[str]:
        """The files that some record names and that are to be kept."""
        with self._database.read() as session:
            return set(session.scalars(select(ResultRow.name).where(ResultRow.deleted_at.is_(None))))

    def give_up_results(self, keep_s: float) -> int:
        """Mark results that are older than this: their files may go, what was charged for them stays on record."""
        now = time.time()
        old = (ResultRow.created_at < now - keep_s, ResultRow.deleted_at.is_(None))
        with self._database.write() as session:
            change = update(ResultRow).where(*old).values(deleted_at=now)
            return len(session.scalars(change.returning(ResultRow.name)).all())

    def _void(self, reason: str, *which: ColumnElement[bool]) -> int:
        change = update(HoldRow).where(HoldRow.state == "held", *which)
        with self._database.write() as session:
            return _moved(session, change.values(state="void", reason=reason[:60], settled_at=time.time()))


def used(session: Session, key_id: str) -> int:
    """What a key has spent and what is held for its running calls."""
    live = (HoldRow.key_id == key_id, HoldRow.state == "held")
    spent = select(func.coalesce(func.sum(EntryRow.amount), 0)).where(EntryRow.key_id == key_id).scalar_subquery()
    held = select(func.coalesce(func.sum(HoldRow.price), 0)).where(*live).scalar_subquery()
    return int(session.scalars(select(spent + held)).one())


def _moved(session: Session, change: Update) -> int:
    return len(session.scalars(change.returning(HoldRow.call_id)).all())


def _result_row(result: StoredResult, hold: HoldRow, now: float) -> ResultRow:
    return ResultRow(
        name=result.name,
        call_id=hold.call_id,
        key_id=hold.key_id,
        position=result.position,
        media_type=result.media_type,
        width_px=result.width_px,
        height_px=result.height_px,
        size_bytes=result.size_bytes,
        sha256=result.sha256,
        created_at=now,
    )
