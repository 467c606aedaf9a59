"""Holds and charges. The database is the only source of truth: no balance is cached, and nothing is ever refunded.

A hold reserves the price of a call of any kind. Its owner (one server process) renews the hold's lease while the call
runs. A charge is an entry. It is written in the transaction that changes the hold from held to captured and records the
call's result. If the hold is no longer held, another process settled the call, and nothing is written.

A key's rest is its budget minus its settled total and its held holds. The total is the sum of its entries, and there is
one of each month's: the transaction that adds an entry writes both with it. So a hold costs the same however many
charges there are, and `darkroom ledger --check` compares them. Both transactions lock the key's row before any other
(on SQLite, BEGIN IMMEDIATE locks everything), so two calls can't both spend the last of a budget, a call that is
captured meanwhile is counted exactly once, and no two transactions wait for each other.

A key may be in a team, whose monthly budget all its keys share. A hold locks the team's row after the key's, and then
reads what the team's keys hold and were charged in one statement, so that a capture, which does not lock it, is seen
whole or not at all. A charge stays that of the team for which it was held, wherever the key goes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, ColumnElement, ScalarSelect, Update, cast, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from server.accounts.db import Database
from server.accounts.gateways import lease_ended, live_owners
from server.accounts.paging import month_start
from server.accounts.store import Store, Write
from server.accounts.tables import EntryRow, HoldRow, KeyMonthRow, KeyRow, TeamRow


class InsufficientBudget(Exception):
    """The key can't pay. `monthly`: it can again when the next month begins. `team`: the name of the key's team, if it
    is the team's budget that does not suffice."""

    def __init__(self, available_units: int, price_units: int, *, monthly: bool = False, team: str = "") -> None:
        super().__init__(f"{available_units} available, {price_units} needed")
        self.available_units = available_units
        self.price_units = price_units
        self.monthly = monthly
        self.team = team


class HoldLost(Exception):
    """The hold is no longer held by this owner: a sweep voided it, or it is settled already."""


@dataclass(frozen=True, slots=True)
class BilledCall:
    """The call that a hold is for. The price is the most that it may cost, and a snapshot: a later catalog does not
    change it."""

    call_id: str
    key_id: str
    endpoint: str
    model: str
    price_units: int


class Ledger(Store):
    """The ledger as one server process (`owner`) uses it. `crash_hook` is called at each crash point, for tests."""

    def __init__(
        self, database: Database, owner: str, lease_s: float = 60, crash_hook: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(database, owner)
        self._lease_s = lease_s
        self._crash_hook = crash_hook
        self._seen_expired: dict[str, float] = {}  # at the last sweep: call ids and until when their leases were

    def hold(self, call: BilledCall, writes: Sequence[Write] = ()) -> None:
        """Reserve the price and run `writes`, in one transaction. Raises InsufficientBudget."""
        with self._database.write() as session:
            key = lock_key(session, call.key_id)
            self._check_budgets(session, key, call.price_units)
            self._check_team(session, key.team_id, call.price_units)
            session.add(
                HoldRow(
                    call_id=call.call_id,
                    key_id=call.key_id,
                    team_id=key.team_id,
                    endpoint=call.endpoint,
                    model=call.model,
                    price=call.price_units,
                    owner=self._owner,
                    lease_until=self._database.lease_now(session) + self._lease_s,
                    state="held",
                    created_at=self.now(),
                )
            )
            for write in writes:
                write(session)

    def capture(self, call_id: str, price_units: int, writes: Sequence[Write] = ()) -> None:
        """Charge the call, and run `writes`, in one transaction. The price is at most what the call holds.

        Raises HoldLost, and ValueError for another price. If it raises DatabaseBusy it may be repeated: when it was
        committed after all, nothing more is written.
        """
        with self._database.write() as session:
            now = self.now()
            hold = session.get(HoldRow, call_id)
            if hold is None:
                raise HoldLost(call_id)
            if not 0 <= price_units <= hold.price:
                raise ValueError(f"{call_id} holds {hold.price} units, of which {price_units} can't be charged")
            key = lock_key(session, hold.key_id)
            own = (HoldRow.call_id == call_id, HoldRow.owner == self._owner)
            captured = {"state": "captured", "price": price_units, "settled_at": now}
            if _count_updated(session, update(HoldRow).where(*own, HoldRow.state == "held").values(**captured)) != 1:
                _require_captured(session, price_units, *own)
                return
            charged = {"key_id": hold.key_id, "team_id": hold.team_id}
            session.add(EntryRow(call_id=call_id, model=hold.model, amount=price_units, created_at=now, **charged))
            key.settled += price_units
            _settle(session, KeyMonthRow(month=month_start(now), settled=price_units, **charged))
            for write in writes:
                write(session)
            session.flush()
            self._crash_hook("before-capture-commit")
        self._crash_hook("after-capture-commit")

    def void(self, call_id: str, reason: str) -> bool:
        """Release the hold. Returns False when this owner holds none for the call."""
        statement = self._void_statement(reason, HoldRow.call_id == call_id, HoldRow.owner == self._owner)
        return self._write(statement) == 1

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
            is_expired = (HoldRow.state == "held", lease_ended(HoldRow.lease_until, self._database.lease_now(session)))
            own_running = (HoldRow.owner == self._owner) & HoldRow.call_id.in_(running)
            query = select(HoldRow.call_id, HoldRow.lease_until).where(*is_expired, ~own_running)
            expired = {row.call_id: row.lease_until for row in session.execute(query)}
            dead = [call_id for call_id, until in expired.items() if self._seen_expired.get(call_id) == until]
            self._seen_expired = expired
            return _count_updated(session, self._void_statement("lease_expired", HoldRow.call_id.in_(dead)))

    def void_orphans(self) -> int:
        """Void the holds of servers that do not run any more; returns how many."""
        return self._write(self._void_statement("server_died", HoldRow.owner.not_in(live_owners())))

    def _check_budgets(self, session: Session, key: KeyRow, price_units: int) -> None:
        held = held_sum(session, key.id)
        limits = [(key.budget, key.settled, False)]
        if key.monthly_budget is not None:
            settled = settled_in_month(KeyMonthRow.key_id == key.id, self.now())
            limits.append((key.monthly_budget, session.scalars(select(settled)).one(), True))
        for limit, spent, monthly in limits:
            if limit is not None and (available := limit - spent - held) < price_units:
                raise InsufficientBudget(available, price_units, monthly=monthly)

    def _check_team(self, session: Session, team_id: str, price_units: int) -> None:
        if not team_id:
            return
        locked = select(TeamRow).where(TeamRow.id == team_id).with_for_update(key_share=True)
        team = session.scalars(locked.execution_options(populate_existing=True)).one()
        if team.monthly_budget is None:
            return
        settled = settled_in_month(KeyMonthRow.team_id == team_id, self.now())
        spent, held = session.execute(select(settled, held_sum_query(HoldRow.team_id == team_id))).one()
        if (available := team.monthly_budget - spent - held) < price_units:
            raise InsufficientBudget(available, price_units, monthly=True, team=team.name)

    def _void_statement(self, reason: str, *conditions: ColumnElement[bool]) -> Update:
        statement = update(HoldRow).where(HoldRow.state == "held", *conditions)
        return statement.values(state="void", reason=reason[:60], settled_at=self.now())


def held_sum(session: Session, key_id: str) -> int:
    """Return the sum of the holds for a key's running calls, in 1/10000 CNY."""
    return session.scalars(select(held_sum_query(HoldRow.key_id == key_id))).one()


def held_sum_query(whose: ColumnElement[bool]) -> ScalarSelect[int]:
    """Return a query of the sum of these holds that are held, in 1/10000 CNY."""
    return _sum_of(HoldRow.price, whose, HoldRow.state == "held")


def settled_in_month(whose: ColumnElement[bool], now: float) -> ScalarSelect[int]:
    """Return a query of the sum of these charges in the month of this time, in 1/10000 CNY."""
    return _sum_of(KeyMonthRow.settled, whose, KeyMonthRow.month == month_start(now))


def _sum_of(column: InstrumentedAttribute[int], *conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    whole = cast(func.coalesce(func.sum(column), 0), BigInteger)  # PostgreSQL adds them up to a decimal
    return select(whole).where(*conditions).scalar_subquery()


def lock_key(session: Session, key_id: str) -> KeyRow:
    """Return the key's row, locked until the transaction ends: against all but rows that are added to refer to it."""
    query = select(KeyRow).where(KeyRow.id == key_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one()


def _settle(session: Session, charge: KeyMonthRow) -> None:
    """Add a charge to the total of its month and team. The key's row is locked."""
    month = session.get(KeyMonthRow, (charge.key_id, charge.month, charge.team_id))
    if month is None:
        session.add(charge)
    else:
        month.settled += charge.settled


def _require_captured(session: Session, price_units: int, *own: ColumnElement[bool]) -> None:
    """Raise HoldLost unless this owner has captured the call at this price: then its capture is repeated."""
    query = select(HoldRow.call_id).where(*own, HoldRow.state == "captured", HoldRow.price == price_units)
    if session.scalar(query) is None:
        raise HoldLost


def _count_updated(session: Session, statement: Update) -> int:
    return len(session.scalars(statement.returning(HoldRow.call_id)).all())
