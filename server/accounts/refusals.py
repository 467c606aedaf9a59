"""The refusals of the moderation policy, for the operator to review."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from sqlalchemy import select

from server.accounts.db import Database
from server.accounts.paging import FIRST_PAGE, Page, read_page_by_id
from server.accounts.tables import RefusalRow

MAX_EVIDENCE = 200


@dataclass(frozen=True, slots=True)
class Refusal:
    """One breach of one policy. `evidence` is the text that matched, or a classifier's score. `id` is 0 until it is
    recorded."""

    call_id: str
    key_id: str
    endpoint: str
    model: str
    stage: str
    policy: str
    category: str
    evidence: str
    created_at: datetime
    id: int = field(default=0, compare=False)


def record_refusals(database: Database, refusals: Sequence[Refusal]) -> None:
    """Record refusals for the operator to review."""
    with database.write() as session:
        session.add_all(_row(refusal) for refusal in refusals)


def list_refusals(database: Database, key_id: str | None = None, page: Page = FIRST_PAGE) -> list[Refusal]:
    """List refusals, and one more than the page has room for if there are more. Raises UnknownEntry."""
    query = select(RefusalRow)
    if key_id is not None:
        query = query.where(RefusalRow.key_id == key_id)
    with database.read() as session:
        rows = read_page_by_id(session, query, RefusalRow, page)
    return [row.to(Refusal, created_at=datetime.fromtimestamp(row.created_at, UTC)) for row in rows]


def _row(refusal: Refusal) -> RefusalRow:
    written = {"evidence": refusal.evidence[:MAX_EVIDENCE], "created_at": refusal.created_at.timestamp(), "id": None}
    return RefusalRow(**asdict(refusal) | written)
