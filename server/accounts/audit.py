"""The audit: one row for each change that an operator made, written in the transaction of the change."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.accounts.db import Database
from server.accounts.operator_tables import AuditRow
from server.accounts.paging import ALWAYS, Page, Period, read_page_by_id

SERVER = "server"  # what the server did by itself, such as making the first key


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change. `operator` is the name of an admin key, or `cli:` with the name of the system's user."""

    id: int
    operator: str
    action: str
    target: str
    details: Mapping[str, Any]
    created_at: float


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter of the audit. None is any."""

    operator: str | None = None
    action: str | None = None
    target: str | None = None
    period: Period = ALWAYS


def audit(session: Session, operator: str, action: str, target: str, **details: Any) -> None:
    """Record a change in the session's transaction. `details` may have no secret."""
    session.add(
        AuditRow(operator=operator[:200], action=action, target=target[:300], details=details, created_at=time.time())
    )


def change_row(session: Session, operator: str, action: str, row: Any, changes: Mapping[str, Any]) -> None:
    """Set these columns of a row, and record those that have changed, each with its value before and after."""
    changed = {name: [before, new] for name, new in changes.items() if (before := getattr(row, name)) != new}
    for name, (_, new) in changed.items():
        setattr(row, name, new)
    if changed:
        audit(session, operator, action, row.id, **changed)


def record_change(database: Database, operator: str, action: str, target: str, **details: Any) -> None:
    """Record a change that is not in the database."""
    with database.write() as session:
        audit(session, operator, action, target, **details)


def list_changes(database: Database, wanted: AuditFilter, page: Page) -> list[AuditEntry]:
    """List changes, and one more than the page has room for if there are more. Raises UnknownEntry."""
    names = {"operator": wanted.operator, "action": wanted.action, "target": wanted.target}
    query = select(AuditRow).where(
        *(getattr(AuditRow, name) == value for name, value in names.items() if value is not None),
        *wanted.period.bounds(AuditRow.created_at),
    )
    with database.read() as session:
        return [row.to(AuditEntry) for row in read_page_by_id(session, query, AuditRow, page)]
