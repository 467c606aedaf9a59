"""The ledger, for the operator: balances, charges, and a check that the tables agree."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.orm import Session

from server.accounts.clock_skew import is_past
from server.accounts.db import Database
from server.accounts.gateways import lease_ended
from server.accounts.ledger import lock_key
from server.accounts.paging import ALWAYS, FIRST_PAGE, Page, Period, month_end, month_start, read_page_by_id
from server.accounts.tables import EntryRow, HoldRow, KeyMonthRow, KeyRow


@dataclass(frozen=True, slots=True)
class Balance:
    """A key's money. `budget_units` None is no limit."""

    key_id: str
    name: str
    budget_units: int | None
    spent_units: int
    held_units: int
    team_id: str = ""

    @property
    def available_units(self) -> int | None:
        """Return the money that the key may still spend; None is no limit."""
        return None if self.budget_units is None else self.budget_units - self.spent_units - self.held_units


@dataclass(frozen=True, slots=True)
class Entry:
    """One charge."""

    id: int
    call_id: str
    key_id: str
    model: str
    amount_units: int
    created_at: datetime
    team_id: str = ""


def balances(database: Database) -> list[Balance]:
    """Return the balance of every key, oldest first."""
    sums = select(HoldRow.key_id, func.sum(HoldRow.price)).where(HoldRow.state == "held").group_by(HoldRow.key_id)
    with database.read() as session:
        held = {row[0]: int(row[1]) for row in session.execute(sums)}
        rows = session.scalars(select(KeyRow).order_by(KeyRow.created_at)).all()
    return [Balance(row.id, row.name, row.budget, row.settled, held.get(row.id, 0), row.team_id) for row in rows]


def entries(
    database: Database,
    key_id: str | None = None,
    page: Page = FIRST_PAGE,
    *,
    team_id: str | None = None,
    model: str | None = None,
    period: Period = ALWAYS,
) -> list[Entry]:
    """List charges, and one more than the page has room for if there are more. Raises UnknownEntry."""
    query = select(EntryRow).where(*period.bounds(EntryRow.created_at))
    for column, value in ((EntryRow.key_id, key_id), (EntryRow.team_id, team_id), (EntryRow.model, model)):
        query = query if value is None else query.where(column == value)
    with database.read() as session:
        rows = read_page_by_id(session, query, EntryRow, page)
    return [
        row.to(Entry, amount_units=row.amount, created_at=datetime.fromtimestamp(row.created_at, UTC)) for row in rows
    ]


def last_charges(database: Database) -> dict[str, float]:
    """Return the time of each model's last charge, in Unix seconds."""
    past = is_past(EntryRow.created_at, database.clock)
    query = select(EntryRow.model, func.max(EntryRow.created_at)).where(past).group_by(EntryRow.model)
    with database.read() as session:
        return {model: float(at) for model, at in session.execute(query)}


def check(database: Database) -> list[str]:
    """Check the ledger, and return one line for each inconsistency; none when it is clean."""
    no_entry = ~select(EntryRow.id).where(EntryRow.call_id == HoldRow.call_id).exists()
    unlike = or_(
        EntryRow.amount != HoldRow.price, EntryRow.key_id != HoldRow.key_id, EntryRow.team_id != HoldRow.team_id
    )
    unequal = select(EntryRow.call_id).join(HoldRow, HoldRow.call_id == EntryRow.call_id).where(unlike)
    # A foreign key forbids these, but a copied or edited database may have some
    orphans = select(EntryRow.call_id).where(~exists().where(HoldRow.call_id == EntryRow.call_id))
    with database.read() as session:
        expired = holds("held", lease_ended(HoldRow.lease_until, database.lease_now(session)))
        problems = [
            *call_problems(session, holds("captured", no_entry), "is captured and has no entry"),
            *call_problems(session, holds("void", ~no_entry), "is void and has an entry"),
            *call_problems(session, holds("held", ~no_entry), "is still held and has an entry"),
            *call_problems(session, expired, "is held past its lease; a running server voids it within a minute"),
            *call_problems(session, unequal, "has an entry of another price, key or team than its hold"),
            *(total.line for total in _wrong_totals(session)),
            *call_problems(session, orphans, "has an entry and no hold"),
        ]
    problems += [
        f"key {balance.key_id} is over its budget by {-balance.available_units}"
        for balance in balances(database)
        if balance.available_units is not None and balance.available_units < 0
    ]
    return problems


def holds(state: str, *conditions: ColumnElement[bool]) -> Select[str]:
    """Return the query of the calls whose holds have this state and meet the conditions."""
    return select(HoldRow.call_id).where(HoldRow.state == state, *conditions)


def call_problems(session: Session, call_ids: Select[str], problem: str) -> list[str]:
    """Return one line for each of these calls, with the problem."""
    return [f"call {call_id} {problem}" for call_id in session.scalars(call_ids)]


def repair_totals(database: Database) -> int:
    """Write the sums of the charges in place of the totals that differ from them, and return how many did: budgets are
    compared with totals, and charges are what is true."""
    with database.write() as session:
        suspects = sorted({total.key_id for total in _wrong_totals(session)})
        keys = {key_id: lock_key(session, key_id) for key_id in suspects}  # then they are charged nothing meanwhile
        wrong = [total for total in _wrong_totals(session) if total.key_id in keys]
        for total in wrong:
            if total.month is None:
                keys[total.key_id].settled = total.charged
            else:
                row = KeyMonthRow(key_id=total.key_id, team_id=total.team_id, month=total.month, settled=total.charged)
                session.merge(row)
    return len(wrong)


@dataclass(frozen=True, slots=True)
class _WrongTotal:
    """A total of a key, of one month and team unless `month` is None, that is not the sum of its charges."""

    key_id: str
    team_id: str
    month: float | None
    recorded: int
    charged: int

    @property
    def line(self) -> str:
        """Describe what differs."""
        of_team = f" for team {self.team_id}" if self.team_id else ""
        of_month = "" if self.month is None else f"{of_team} in {datetime.fromtimestamp(self.month, UTC):%Y-%m}"
        return f"key {self.key_id} has a settled total of {self.recorded} and charges of {self.charged}{of_month}"


def _wrong_totals(session: Session) -> list[_WrongTotal]:
    """Compare the totals of all charges of a key, and of those of each month and team."""
    totals = dict(session.execute(select(KeyRow.id, KeyRow.settled)).all())
    charged: dict[str, int] = defaultdict(int)
    months: dict[tuple[str, str, float], int] = {}
    for month in charged_months(session):
        in_month = (EntryRow.created_at >= month, EntryRow.created_at < month_end(month))
        whose = (EntryRow.key_id, EntryRow.team_id)
        for key_id, team_id, amount in session.execute(
            select(*whose, func.sum(EntryRow.amount)).where(*in_month).group_by(*whose)
        ):
            months[key_id, team_id, month] = int(amount)
            charged[key_id] += int(amount)
    recorded = {(row.key_id, row.team_id, row.month): row.settled for row in session.scalars(select(KeyMonthRow))}
    compared = [_WrongTotal(key_id, "", None, total, charged[key_id]) for key_id, total in totals.items()]
    compared += [
        _WrongTotal(*each, recorded.get(each, 0), months.get(each, 0))
        for each in sorted(recorded.keys() | months.keys())
    ]
    return [each for each in compared if each.recorded != each.charged]


def charged_months(session: Session) -> Iterator[float]:
    """Yield the beginnings of the months that have entries, in Unix seconds, the earliest first."""
    first = session.scalar(select(func.min(EntryRow.created_at)))
    while first is not None:
        yield month_start(first)
        first = session.scalar(select(func.min(EntryRow.created_at)).where(EntryRow.created_at >= month_end(first)))
