"""Token counts of chats, by key, model and day. Chats are not billed."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite

from server.accounts.db import Database
from server.accounts.tables import ChatUsageRow, KeyRow


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """The totals of one key's chats with one model."""

    key_id: str
    model: str
    chats: int
    prompt_tokens: int
    completion_tokens: int


def add_chat_usage(database: Database, key_id: str, model: str, prompt_tokens: int, completion_tokens: int) -> None:
    """Count one chat, under today in UTC and the key's team."""
    insert = sqlite.insert if database.is_sqlite else postgresql.insert
    row = insert(ChatUsageRow).values(
        key_id=key_id,
        team_id=select(KeyRow.team_id).where(KeyRow.id == key_id).scalar_subquery(),
        model=model,
        day=datetime.fromtimestamp(database.clock.now(), UTC).date().isoformat(),
        chats=1,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )
    totals = ("chats", "prompt_tokens", "completion_tokens")
    upsert = row.on_conflict_do_update(
        index_elements=["key_id", "model", "day", "team_id"],
        set_={name: getattr(ChatUsageRow, name) + getattr(row.excluded, name) for name in totals},
    )
    with database.write() as session:
        session.execute(upsert)


def list_chat_usage(database: Database, key_id: str | None = None) -> list[ChatUsage]:
    """Return the totals over all days, by key and model."""
    row = ChatUsageRow
    query = (
        select(row.key_id, row.model, func.sum(row.chats), func.sum(row.prompt_tokens), func.sum(row.completion_tokens))
        .group_by(row.key_id, row.model)
        .order_by(row.key_id, row.model)
    )
    if key_id is not None:
        query = query.where(row.key_id == key_id)
    with database.read() as session:
        rows = session.execute(query).all()
    return [ChatUsage(key, model, *map(int, totals)) for key, model, *totals in rows]
