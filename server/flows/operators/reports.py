"""Usage, calls, charges, refusals, images and changes as rows. All functions block."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from server.accounts.audit import AuditEntry
from server.accounts.call_log import LoggedCall
from server.accounts.db import Database
from server.accounts.keys import list_keys
from server.accounts.refusals import Refusal
from server.accounts.report import Entry
from server.accounts.results import Result
from server.accounts.usage import Grouping, UsageFilter, total, usage
from server.money import format_money
from server.schemas.reports import (
    AuditRecord,
    CallDetails,
    CallEntry,
    LedgerEntry,
    RefusalEntry,
    ResultEntry,
    UsageReport,
    UsageRow,
    UsageSums,
)

SUMS = tuple(UsageSums.model_fields)
THUMBNAIL_PX = 320
MONEY = ("budget", "monthly_budget")  # of an audited change, where the database has numbers


def usage_report(database: Database, wanted: UsageFilter, by: Collection[Grouping]) -> UsageReport:
    """Return the usage of each group, and the sum of all."""
    rows = usage(database, wanted, by)
    whole = total(rows)
    return UsageReport(
        data=[UsageRow.describe(row, amount=format_money(row.amount)) for row in rows],
        total=UsageSums.describe(whole, amount=format_money(whole.amount)),
    )


def usage_columns(by: Collection[Grouping]) -> list[str]:
    """Return the columns of a table of usage: the groups, then the sums."""
    groups = {
        "team": ["team_id", "team_name"],
        "key": ["key_id", "key_name"],
        "month": ["month"],
        "day": ["day"],
        "model": ["model"],
    }
    return [column for name, columns in groups.items() if name in by for column in columns] + list(SUMS)


def key_names(database: Database) -> Mapping[str, str]:
    """Return the names of all keys, by key id."""
    return {key.id: key.name for key in list_keys(database)}


def call_entry(call: LoggedCall) -> CallEntry:
    """Return a logged call as a row of the list of calls."""
    return CallEntry.describe(call, price=format_money(call.price))


def call_details(call: LoggedCall) -> CallDetails:
    """Return a logged call with its prompt and parameters, as far as they were kept."""
    return CallDetails.describe(call, price=format_money(call.price))


def ledger_entries(entries: Sequence[Entry], names: Mapping[str, str], teams: Mapping[str, str]) -> list[LedgerEntry]:
    """Return entries of the ledger as rows. `names` are of the keys, by id, and `teams` those of the teams."""
    return [
        LedgerEntry.describe(
            entry,
            id=str(entry.id),
            created_at=entry.created_at.timestamp(),
            key_name=names.get(entry.key_id, ""),
            team_name=teams.get(entry.team_id, ""),
            amount=format_money(entry.amount_units),
        )
        for entry in entries
    ]


def refusal_entries(refusals: Sequence[Refusal], names: Mapping[str, str]) -> list[RefusalEntry]:
    """Return refusals as rows. `names` are of the keys."""
    return [
        RefusalEntry.describe(
            refusal,
            id=str(refusal.id),
            created_at=refusal.created_at.timestamp(),
            key_name=names.get(refusal.key_id, ""),
        )
        for refusal in refusals
    ]


def audit_record(entry: AuditEntry) -> AuditRecord:
    """Return an entry of the audit log as a row, with amounts of money in CNY."""
    details = {name: _money(value) if name in MONEY else value for name, value in entry.details.items()}
    return AuditRecord.describe(entry, id=str(entry.id), details=details)


def result_entry(result: Result, base: str) -> ResultEntry:
    """Return a stored image as a row. `base` is the URL of results, without a slash at the end."""
    origin = result.origin
    return ResultEntry.describe(
        result,
        id=result.name,
        url=f"{base}/{result.name}",
        thumbnail=f"{base}/{result.name}?w={THUMBNAIL_PX}",
        width=result.width_px,
        height=result.height_px,
        bytes=result.size_bytes,
        seed=origin.seed if origin else None,
        prompt=origin.prompt if origin else None,
        parameters=dict(origin.parameters) if origin else None,
        parents=list(origin.parents) if origin else [],
    )


def _money(value: Any) -> Any:
    """Format an amount, or those before and after a change; None is no limit."""
    if isinstance(value, list):
        return [_money(each) for each in value]
    return format_money(value) if isinstance(value, int) else value
