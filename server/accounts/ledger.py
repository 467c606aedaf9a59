"""Holds and charges. The database is the only source of truth: no balance is cached, and nothing is ever refunded.

A hold reserves the price of a call. Its owner (one server process) renews the hold's lease while the call runs. A
charge is an entry. It is written in the transaction that records the call's results and changes the hold from held to
captured. If the hold is no longer held, another process settled the call, and nothing is written.

What a key has left is its budget minus its settled total and its held holds. The total is the sum of its entries, and
there is one of each month's: the transaction that adds an entry writes both with it. So a hold costs the same however
many charges there are, and `darkroom ledger --check` compares them. Both transactions lock the key's row
before any other (on SQLite, BEGIN IMMEDIATE locks everything), so two calls can't both spend the last of a budget, a
call that is captured meanwhile is counted exactly once, and no two transactions wait for each other.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Update, func, select, update
from sqlalchemy.orm import Session

from server.accounts.db import PAGE, Database
from server.accounts.gateways import lapsed, live_owners
from server.accounts.paging import month_start
from server.accounts.store import Store
from server.accounts.tables import EntryRow, HoldRow, KeyMonthRow, KeyRow, ResultRow


class InsufficientBudget(Exception):
    """The key can't pay. Amounts in 1/10000 CNY. `monthly`: it can again when the next month begins."""

    def __init__(self, available: int, price: int, *, monthly: bool = False) -> None:
        super().__init__(f"{available} available, {price} needed")
        self.available = available
        self.price = price
        self.monthly = monthly


class HoldLost(Exception):
    """The hold is no longer held by this owner: a sweep voided it, or it is settled already."""


@dataclass(frozen=True, slots=True)
class BilledCall:
    """The call that a hold is for. The price is a snapshot: a later catalog does not change it."""

    call_id: str
    key_id: str
    endpoint: str
    model: str
    price: int


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A finished picture whose file is on disk and synced."""

    name: str
    media_type: str
    width_px: int
    height_px: int
    size_bytes: int
    sha256: str
    position: int


def _no_op(_: object) -> None:
    return None


class Ledger(Store):
    """The ledger as one server process (`owner`) uses it. `crash_hook` is called at each crash point, for tests."""

    def __init__(
        self, database: Database, owner: str, lease_s: float = 60, crash_hook: Callable[[str], None] = _no_op
    ) -> None:
        super().__init__(database)
        self._owner = owner
        self._lease_s = lease_s
        self._crash_hook = crash_hook
        self._seen_expired: dict[str, float] = {}  # at the last sweep: call ids and until when their leases were

    def hold(self, call: BilledCall, extra_writes: Callable[[Session], None] = _no_op) -> None:
        """Reserve the price and run `extra_writes`, in one transaction. Raises InsufficientBudget."""
        with self._database.write() as session:
            key = lock_key(session, call.key_id)
            self._check_budgets(session, key, call.price)
            session.add(
                HoldRow(
                    call_id=call.call_id,
                    key_id=call.key_id,
                    endpoint=call.endpoint,
                    model=call.model,
                    price=call.price,
                    owner=self._owner,
                    lease_until=self._database.lease_now(session) + self._lease_s,
                    state="held",
                    created_at=self._database.clock.now(),
                )
            )
            extra_writes(session)

    def capture(
        self, call_id: str, results: Sequence[StoredResult], extra_writes: Callable[[Session], None] = _no_op
    ) -> int:
        """Charge the call, with its results and `extra_writes`, in one transaction; returns the price.

        Raises HoldLost. If it raises DatabaseBusy it may be repeated: when it was committed after all, nothing more is
        written.
        """
        if not results:
            raise ValueError(f"{call_id} has no results, and what was not delivered is not charged")
        with self._database.write() as session:
            now = self._database.clock.now()
            hold = session.get(HoldRow, call_id)
            if hold is None:
                raise HoldLost(call_id)
            key = lock_key(session, hold.key_id)
            own = (HoldRow.call_id == call_id, HoldRow.state == "held", HoldRow.owner == self._owner)
            if _count_updated(session, update(HoldRow).where(*own).values(state="captured", settled_at=now)) != 1:
                return _captured_price(session, call_id, results)
            session.add(
                EntryRow(call_id=call_id, key_id=hold.key_id, model=hold.model, amount=hold.price, created_at=now)
            )
            _settle(session, key, hold.price, now)
            for result in results:
                session.add(_result_row(result, hold, now))
            extra_writes(session)
            session.flush()
            self._crash_hook("before-capture-commit")
            price = hold.price
        self._crash_hook("after-capture-commit")
        return price

    def void(self, call_id: str, reason: str) -> bool:
        """Release the hold. False when this owner holds none for the call."""
        statement = self._void_statement(reason, HoldRow.call_id == call_id, HoldRow.owner == self._owner)
        with self._database.write() as session:
            return _count_updated(session, statement) == 1

    def renew(self, running: Collection[str]) -> int:
        """Extend the leases of this owner's holds for these calls; returns how many. Its other holds expire: their
        calls have ended, but voiding them failed (disk full, for example)."""
        own = (HoldRow.owner == self._owner, HoldRow.state == "held", HoldRow.call_id.in_(running))
        with self._database.write() as session:
            lease_until = self._database.lease_now(session) + self._lease_s
            return _count_updated(session, update(HoldRow).where(*own).values(lease_until=lease_until))

    def sweep(self, running: Collection[str]) -> int:
        """Void the holds whose lease had lapsed at the last sweep already, whoever owns them; returns how many.

        Never this owner's `running` calls, nor a hold that its owner has renewed since: if the database's clock was
        set, all leases may seem to expire at once.
        """
        with self._database.write() as session:
            is_expired = (HoldRow.state == "held", lapsed(HoldRow.lease_until, self._database.lease_now(session)))
            own_running = (HoldRow.owner == self._owner) & HoldRow.call_id.in_(running)
            query = select(HoldRow.call_id, HoldRow.lease_until).where(*is_expired, ~own_running)
            expired = {row.call_id: row.lease_until for row in session.execute(query)}
            dead = [call_id for call_id, until in expired.items() if self._seen_expired.get(call_id) == until]
            self._seen_expired = expired
            return _count_updated(session, self._void_statement("lease_expired", HoldRow.call_id.in_(dead)))

    def void_orphans(self) -> int:
        """Void the holds of servers that do not run any more; returns how many."""
        with self._database.write() as session:
            dead = HoldRow.owner.not_in(live_owners())
            return _count_updated(session, self._void_statement("server_died", dead))

    def find_result(self, name: str) -> StoredResult | None:
        """The record of a stored picture; None if there is none, or its file was deleted."""
        with self._database.read() as session:
            row = session.get(ResultRow, name)
        if row is None or row.deleted_at is not None:
            return None
        return StoredResult(
            row.name, row.media_type, row.width_px, row.height_px, row.size_bytes, row.sha256, row.position
        )

    def recorded(self, names: Collection[str]) -> set[str]:
        """Which of these files have a record and must not be deleted."""
        with self._database.read() as session:
            kept = (ResultRow.name.in_(names), ResultRow.deleted_at.is_(None))
            return set(session.scalars(select(ResultRow.name).where(*kept)))

    def expire_results(self, max_age_s: float, limit: int = PAGE) -> int:
        """Mark results older than this as deleted, so that a sweep removes their files. Their charges stay. Returns how
        many; if as many as `limit`, there may be more."""
        expired = (ResultRow.created_at < self._database.clock.cautious() - max_age_s, ResultRow.deleted_at.is_(None))
        page = select(ResultRow.name).where(*expired).order_by(ResultRow.created_at).limit(limit)
        with self._database.write() as session:
            statement = update(ResultRow).where(ResultRow.name.in_(page))
            statement = statement.values(deleted_at=self._database.clock.now())
            return len(session.scalars(statement.returning(ResultRow.name)).all())

    def _check_budgets(self, session: Session, key: KeyRow, price: int) -> None:
        held = held_sum(session, key.id)
        limits = [(key.budget, key.settled, False)]
        if key.monthly_budget is not None:
            month = session.get(KeyMonthRow, (key.id, month_start(self._database.clock.now())))
            limits.append((key.monthly_budget, month.settled if month is not None else 0, True))
        for limit, spent, monthly in limits:
            if limit is not None and (available := limit - spent - held) < price:
                raise InsufficientBudget(available, price, monthly=monthly)

    def _void_statement(self, reason: str, *conditions: ColumnElement[bool]) -> Update:
        statement = update(HoldRow).where(HoldRow.state == "held", *conditions)
        return statement.values(state="void", reason=reason[:60], settled_at=self._database.clock.now())


def held_sum(session: Session, key_id: str) -> int:
    """The sum of the holds for a key's running calls, in 1/10000 CNY."""
    own_held = (HoldRow.key_id == key_id, HoldRow.state == "held")
    return int(session.scalars(select(func.coalesce(func.sum(HoldRow.price), 0)).where(*own_held)).one())


def lock_key(session: Session, key_id: str) -> KeyRow:
    """The key's row, locked until the transaction ends: against all but rows that are added to refer to it."""
    query = select(KeyRow).where(KeyRow.id == key_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one()


def _settle(session: Session, key: KeyRow, price: int, now: float) -> None:
    """Add a charge of this moment to the total of the key, whose row is locked, and to that of the month."""
    key.settled += price
    month = session.get(KeyMonthRow, (key.id, month_start(now)))
    if month is None:
        session.add(KeyMonthRow(key_id=key.id, month=month_start(now), settled=price))
    else:
        month.settled += price


def _captured_price(session: Session, call_id: str, results: Sequence[StoredResult]) -> int:
    """The price of a call that was captured with these pictures. Raises HoldLost if it was not."""
    recorded = set(session.scalars(select(ResultRow.name).where(ResultRow.call_id == call_id)))
    if recorded != {result.name for result in results}:
        raise HoldLost(call_id)
    return session.get_one(HoldRow, call_id).price


def _count_updated(session: Session, statement: Update) -> int:
    return len(session.scalars(statement.returning(HoldRow.call_id)).all())


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
