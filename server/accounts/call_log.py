"""A row for each request that runs a model, however it ended. Money is the ledger's: the price here is a copy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import delete, func, select, update

from server.accounts.clock_skew import is_past, reset_future_times
from server.accounts.db import PAGE
from server.accounts.operator_tables import CallLogRow
from server.accounts.paging import ALWAYS, Page, Period, read_own
from server.accounts.store import Store
from server.accounts.tables import KeyRow

Outcome = Literal["succeeded", "refused", "failed"]
CLIENT_LEFT = 499  # as the log of nginx has it
OUTCOMES = {
    "succeeded": CallLogRow.status < 400,
    "refused": CallLogRow.status.between(400, CLIENT_LEFT - 1),
    "failed": CallLogRow.status >= CLIENT_LEFT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """One request. `id` is the request's; `job` the image call's or response's that it began or found.

    `queue_s` and `run_s` are of the job, on the device; `price` in 1/10000 CNY is the charge for this request;
    `replayed`: it got the answer of an earlier one. `prompt` and `parameters` are there only while they are kept.
    """

    id: str
    job: str | None
    key_id: str
    key_name: str = ""
    endpoint: str
    model: str | None
    status: int
    code: str | None
    message: str | None = None  # of the error, with the field that it names
    param: str | None = None
    seconds: float
    queue_s: float | None
    run_s: float | None
    price: int
    images: int
    prompt_tokens: int | None
    completion_tokens: int | None
    replayed: bool
    created_at: float
    prompt: str | None = None
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallFilter:
    """A filter of calls. None is any."""

    key_id: str | None = None
    outcome: Outcome | None = None
    model: str | None = None
    code: str | None = None
    period: Period = ALWAYS


class CallLog(Store):
    """Rows that are added once, read, and deleted by age."""

    def add(self, call: LoggedCall) -> None:
        """Add the row of a call."""
        values = asdict(call)
        del values["key_name"]  # its key's, which may change
        with self._database.write() as session:
            session.add(CallLogRow(**values))

    def page(self, wanted: CallFilter, page: Page) -> list[LoggedCall]:
        """List calls, and one more than the page has room for if there are more. Raises UnknownEntry."""
        row = CallLogRow
        equal = {row.key_id: wanted.key_id, row.model: wanted.model, row.code: wanted.code}
        query = select(row).where(
            *(column == value for column, value in equal.items() if value is not None),
            *wanted.period.bounds(row.created_at),
        )
        if wanted.outcome is not None:
            query = query.where(OUTCOMES[wanted.outcome])
        with self._database.read() as session:
            rows = read_own(session, query, [row.created_at, row.id], page, wanted.key_id)
            named = select(KeyRow.id, KeyRow.name).where(KeyRow.id.in_({each.key_id for each in rows}))
            names = dict(session.execute(named).all())
            return [each.to(LoggedCall, key_name=names.get(each.key_id, "")) for each in rows]

    def find(self, call_id: str, key_id: str | None = None) -> LoggedCall | None:
        """Return a call by the request's id or the job's, None if there is none. `key_id` None is any key."""
        row = CallLogRow
        query = select(row, KeyRow.name).join(KeyRow, KeyRow.id == row.key_id)
        query = query.where((row.id == call_id) | (row.job == call_id)).order_by(row.replayed, row.created_at)
        if key_id is not None:
            query = query.where(row.key_id == key_id)
        with self._database.read() as session:
            return next((each.to(LoggedCall, key_name=name) for each, name in session.execute(query.limit(1))), None)

    def last_used(self) -> dict[str, float]:
        """Return the time of each key's last call that is still in the log, in Unix seconds."""
        past = is_past(CallLogRow.created_at, self._database.clock)
        query = select(CallLogRow.key_id, func.max(CallLogRow.created_at)).where(past).group_by(CallLogRow.key_id)
        with self._database.read() as session:
            return {key_id: float(at) for key_id, at in session.execute(query)}

    def delete_older(self, max_age_s: float, limit: int = PAGE) -> int:
        """Delete up to `limit` rows older than `max_age_s`, and return how many. If as many as `limit`, there may be
        more."""
        old = CallLogRow.created_at < self._database.clock.earliest() - max_age_s
        page = select(CallLogRow.id).where(old).limit(limit)
        with self._database.write() as session:
            reset_future_times(session, CallLogRow.created_at, self._database.clock, max_age_s)
            deleted = session.scalars(delete(CallLogRow).where(CallLogRow.id.in_(page)).returning(CallLogRow.id))
            return len(deleted.all())

    def delete_prompts(self, limit: int = PAGE) -> int:
        """Remove prompts and parameters that were kept before; returns how many. If as many as `limit`, there may be
        more."""
        kept = CallLogRow.prompt.is_not(None) | CallLogRow.parameters.is_not(None)
        page = select(CallLogRow.id).where(kept).limit(limit)
        return self._write(update(CallLogRow).where(CallLogRow.id.in_(page)).values(prompt=None, parameters=None))
