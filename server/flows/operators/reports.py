"""Usage, calls, charges, refusals, images and changes as rows. All functions block."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from server.accounts.audit import AuditEntry
from server.accounts.call_log import LoggedCall
from server.accounts.db import Database
from server.accounts.keys import list_keys
from server.accounts.refusals import Refusal
from server.accounts.report import Entry
from server.accounts.results import Result
from server.accounts.usage import Grouping, Usage, UsageFilter, total, usage
from server.money import format_money
from server.schemas.operators import AuditRecord, LedgerEntry, RefusalEntry
from server.schemas.usage import CallDetails, CallEntry, ResultEntry, UsageReport, UsageRow, UsageSums

SUMS = tuple(UsageSums.model_fields)
THUMBNAIL_PX = 320
MONEY = ("budget", "monthly_budget")  # of an audited change, where the database has numbers


def usage_report(database: Database, wanted: UsageFilter, by: Collection[Grouping]) -> UsageReport:
    """The groups and their sum."""
    rows = usage(database, wanted, by)
    return UsageReport(
        data=[UsageRow(**_usage_values(row)) for row in rows], total=UsageSums(**_usage_values(total(rows)))
    )


def usage_columns(by: Collection[Grouping]) -> list[str]:
    """Of a table of usage: what it is grouped by, then the sums."""
    groups = {"key": ["key_id", "key_name"], "month": ["month"], "day": ["day"], "model": ["model"]}
    return [column for name, columns in groups.items() if name in by for column in columns] + list(SUMS)


def key_names(database: Database) -> Mapping[str, str]:
    """By id."""
    return {key.id: key.name for key in list_keys(database)}


def call_entry(call: LoggedCall) -> CallEntry:
    return CallEntry(**_call_values(call))


def call_details(call: LoggedCall) -> CallDetails:
    return CallDetails(**_call_values(call), prompt=call.prompt, parameters=_plain(call.parameters))


def ledger_entries(entries: Sequence[Entry], names: Mapping[str, str]) -> list[LedgerEntry]:
    """`names` are of the keys."""
    return [
        LedgerEntry(
            id=str(entry.id),
            created_at=entry.created_at.timestamp(),
            key_id=entry.key_id,
            key_name=names.get(entry.key_id, ""),
            call_id=entry.call_id,
            model=entry.model,
            amount=format_money(entry.amount_units),
        )
        for entry in entries
    ]


def refusal_entries(refusals: Sequence[Refusal], names: Mapping[str, str]) -> list[RefusalEntry]:
    """`names` are of the keys."""
    return [
        RefusalEntry(
            **{
                **asdict(refusal),
                "id": str(refusal.id),
                "created_at": refusal.created_at.timestamp(),
                "key_name": names.get(refusal.key_id, ""),
            }
        )
        for refusal in refusals
    ]


def audit_record(entry: AuditEntry) -> AuditRecord:
    details = {name: _money(value) if name in MONEY else value for name, value in entry.details.items()}
    return AuditRecord(**{**asdict(entry), "id": str(entry.id), "details": details})


def result_entry(result: Result, base: str) -> ResultEntry:
    """`base` is the URL of results, without a slash at the end."""
    origin = result.origin
    return ResultEntry(
        id=result.name,
        url=f"{base}/{result.name}",
        thumbnail=f"{base}/{result.name}?w={THUMBNAIL_PX}",
        call_id=result.call_id,
        model=result.model,
        endpoint=result.endpoint,
        created_at=result.created_at,
        width=result.width_px,
        height=result.height_px,
        media_type=result.media_type,
        bytes=result.size_bytes,
        seed=origin.seed if origin else None,
        prompt=origin.prompt if origin else None,
        parameters=dict(origin.parameters) if origin else None,
        parents=list(origin.parents) if origin else [],
    )


def _usage_values(row: Usage) -> dict[str, Any]:
    return {**asdict(row), "amount": format_money(row.amount)}


def _call_values(call: LoggedCall) -> dict[str, Any]:
    values = {name: getattr(call, name) for name in CallEntry.model_fields if name not in {"object", "price"}}
    return {**values, "price": format_money(call.price)}


def _money(value: Any) -> Any:
    """An amount, or those before and after a change; None is no limit."""
    if isinstance(value, list):
        return [_money(each) for each in value]
    return format_money(value) if isinstance(value, int) else value


def _plain(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)
