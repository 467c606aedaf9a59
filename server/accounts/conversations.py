"""Conversations and their items. A key never sees another key's conversation.

A response that ends in a conversation adds its items in the transaction that records its end (`add_response_items`).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sqlalchemy import Text, cast, delete, func, select
from sqlalchemy.orm import Session

from server.accounts.clock_skew import reset_future_times
from server.accounts.db import PAGE
from server.accounts.paging import Page, read_page
from server.accounts.response_items import StoredItem
from server.accounts.response_tables import (
    ConversationFileRow,
    ConversationItemRow,
    ConversationRow,
    ItemRow,
    ResponseRow,
)
from server.accounts.store import Store

MAX_CONVERSATIONS = 10_000  # of a key
MAX_ITEMS = 10_000  # of a conversation
MAX_IMAGES = 10_000  # that came inside requests, in all conversations of a key
MAX_ITEM_BYTES = 16 * 1024**2  # of a conversation's items as JSON: each of its responses reads them all


class TooMany(Exception):
    """A key has as many conversations, or a conversation as many items or images or as much text, as it may have."""

    def __init__(self, what: Literal["conversations", "items", "pictures", "text"]) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items."""

    id: str
    metadata: Mapping[str, str]
    created_at: int


class ConversationStore(Store):
    """The conversations of all keys."""

    def create(self, conversation: Conversation, key_id: str, items: Sequence[StoredItem]) -> None:
        """Record a new conversation with its items. Raises TooMany."""
        with self._database.write() as session:
            count = select(func.count()).select_from(ConversationRow).where(ConversationRow.key_id == key_id)
            if (session.scalar(count) or 0) >= MAX_CONVERSATIONS:
                raise TooMany("conversations")
            _check_new(session, key_id, items, 0)
            now = self.now()
            row = ConversationRow(
                id=conversation.id,
                key_id=key_id,
                labels=dict(conversation.metadata),
                created_at=conversation.created_at,
                used_at=now,
            )
            session.add(row)
            session.flush()
            _add(session, conversation.id, None, items)

    def find(self, conversation_id: str, key_id: str) -> Conversation | None:
        """Return this key's conversation of this id, None if there is none."""
        with self._database.read() as session:
            row = _find_own(session, conversation_id, key_id)
            return None if row is None else _conversation(row)

    def label(self, conversation_id: str, key_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        """Replace the metadata of this key's conversation, and return the conversation; None if there is none of this
        id."""
        with self._database.write() as session:
            row = _find_own(session, conversation_id, key_id)
            if row is None:
                return None
            row.labels, row.used_at = dict(metadata), self.now()
            return _conversation(row)

    def delete(self, conversation_id: str, key_id: str) -> bool:
        """Delete a conversation and its items; its responses stay. Returns False when there is none."""
        with self._database.write() as session:
            if _find_own(session, conversation_id, key_id) is None:
                return False
            _delete(session, [conversation_id])
        return True

    def add(self, conversation_id: str, key_id: str, items: Sequence[StoredItem]) -> bool:
        """Put items at the end of a conversation. Returns False when there is no such conversation. Raises TooMany."""
        with self._database.write() as session:
            row = _find_own(session, conversation_id, key_id)
            if row is None:
                return False
            own = ConversationItemRow.conversation_id == conversation_id
            size = func.coalesce(func.sum(func.length(cast(ConversationItemRow.body, Text))), 0)
            count, size_bytes = session.execute(select(func.count(), size).where(own)).one()
            if count + len(items) > MAX_ITEMS:
                raise TooMany("items")
            _check_new(session, key_id, items, size_bytes)
            row.used_at = self.now()
            _add(session, conversation_id, None, items)
        return True

    def items(self, conversation_id: str, key_id: str) -> tuple[list[StoredItem], list[StoredItem]] | None:
        """Return all items in their order, and those of them that the client put in. None if there is no such
        conversation."""
        with self._database.read() as session:
            if _find_own(session, conversation_id, key_id) is None:
                return None
            own = ConversationItemRow.conversation_id == conversation_id
            query = select(ConversationItemRow).where(own).order_by(ConversationItemRow.id).limit(MAX_ITEMS)
            rows = list(session.scalars(query))
            return [row.to(StoredItem) for row in rows], [row.to(StoredItem) for row in rows if row.response_id is None]

    def page(self, conversation_id: str, key_id: str, page: Page) -> list[StoredItem] | None:
        """Return a page, and one more item if there are more. None if there is no such conversation. Raises
        UnknownEntry."""
        with self._database.read() as session:
            if _find_own(session, conversation_id, key_id) is None:
                return None
            after = _find_item(session, conversation_id, page.after) if page.after else None
            query = select(ConversationItemRow).where(ConversationItemRow.conversation_id == conversation_id)
            return [row.to(StoredItem) for row in read_page(session, query, [ConversationItemRow.id], page, after)]

    def find_item(self, conversation_id: str, key_id: str, item_id: str) -> StoredItem | None:
        """Return an item of this key's conversation, None if there is none."""
        with self._database.read() as session:
            row = _find_own(session, conversation_id, key_id) and _find_item(session, conversation_id, item_id)
            return row.to(StoredItem) if row else None

    def delete_item(self, conversation_id: str, key_id: str, item_id: str) -> Conversation | None:
        """Delete an item, and return the conversation without it. None when there is no such item."""
        with self._database.write() as session:
            row = _find_own(session, conversation_id, key_id)
            item = _find_item(session, conversation_id, item_id) if row else None
            if row is None or item is None:
                return None
            session.delete(item)
            row.used_at = self.now()
            return _conversation(row)

    def delete_expired(self, max_age_s: float, limit: int = PAGE) -> int:
        """Delete conversations that were not used for this long; returns how many."""
        unused = ConversationRow.used_at < self._database.clock.earliest() - max_age_s
        with self._database.write() as session:
            reset_future_times(session, ConversationRow.used_at, self._database.clock, max_age_s)
            ids = list(session.scalars(select(ConversationRow.id).where(unused).limit(limit)))
            _delete(session, ids)
            return len(ids)

    def referenced_files(self, names: Collection[str]) -> set[str]:
        """Return those of the named files that came inside requests and that a conversation still needs."""
        with self._database.read() as session:
            query = select(ConversationFileRow.name).where(ConversationFileRow.name.in_(names))
            return set(session.scalars(query))


def add_response_items(session: Session, response_ids: Sequence[str], now: float) -> None:
    """Put the items of these responses at the end of their conversations. One that was deleted stays so."""
    query = select(ResponseRow).where(ResponseRow.id.in_(response_ids), ResponseRow.conversation_id.is_not(None))
    for response in session.scalars(query):
        conversation = session.get(ConversationRow, response.conversation_id)
        if conversation is None:
            continue
        conversation.used_at = now
        rows = session.scalars(select(ItemRow).where(ItemRow.response_id == response.id).order_by(ItemRow.position))
        _add(session, conversation.id, response.id, [row.to(StoredItem) for row in rows])


def _add(session: Session, conversation_id: str, response_id: str | None, items: Sequence[StoredItem]) -> None:
    for item in items:
        names = {"conversation_id": conversation_id, "item_id": item.id, "response_id": response_id}
        session.add(ConversationItemRow(**names, **asdict(item)))
        session.flush()  # each gets its number in this order
    for name in {name for item in items if item.side == "input" for name in item.files}:
        session.merge(ConversationFileRow(name=name, conversation_id=conversation_id))


def _check_new(session: Session, key_id: str, items: Sequence[StoredItem], size_bytes: int) -> None:
    """Check the limits of a conversation's text and images. `size_bytes` is that of the items which the conversation
    has. Raises TooMany."""
    if size_bytes + sum(len(json.dumps(dict(item.body))) for item in items) > MAX_ITEM_BYTES:
        raise TooMany("text")
    new = {name for item in items for name in item.files}
    if new:
        count = select(func.count()).select_from(ConversationFileRow).join(ConversationRow)
        if (session.scalar(count.where(ConversationRow.key_id == key_id)) or 0) + len(new) > MAX_IMAGES:
            raise TooMany("pictures")


def _find_own(session: Session, conversation_id: str, key_id: str) -> ConversationRow | None:
    row = session.get(ConversationRow, conversation_id)
    return row if row is not None and row.key_id == key_id else None


def _find_item(session: Session, conversation_id: str, item_id: str) -> ConversationItemRow | None:
    """Return the item of this id; the last one, if a client sent an item twice."""
    where = (ConversationItemRow.conversation_id == conversation_id, ConversationItemRow.item_id == item_id)
    query = select(ConversationItemRow).where(*where).order_by(ConversationItemRow.id.desc()).limit(1)
    return session.scalars(query).first()


def _delete(session: Session, ids: Sequence[str]) -> None:
    for table in (ConversationItemRow, ConversationFileRow):
        session.execute(delete(table).where(table.conversation_id.in_(ids)))
    session.execute(delete(ConversationRow).where(ConversationRow.id.in_(ids)))


def _conversation(row: ConversationRow) -> Conversation:
    return Conversation(row.id, row.labels, int(row.created_at))
