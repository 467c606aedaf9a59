"""The rows of conversations: their items, and images by file name."""

from typing import Any

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from server.accounts.tables import AutoInteger, Base


class ConversationRow(Base):
    """A conversation of a key. It outlives the responses that were made in it."""

    __tablename__ = "conversations"

    id: Mapped[str] = mapped_column(String(60), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), index=True)
    labels: Mapped[dict[str, str]] = mapped_column("metadata", JSON)
    created_at: Mapped[float]
    used_at: Mapped[float] = mapped_column(index=True)


class ConversationItemRow(Base):
    """One item; they are in the order of their ids. Items without a `response_id` were put in by the client."""

    __tablename__ = "conversation_items"

    id: Mapped[int] = mapped_column(AutoInteger, primary_key=True, autoincrement=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id"), index=True)
    item_id: Mapped[str] = mapped_column(String(200), index=True)
    response_id: Mapped[str | None] = mapped_column(String(60))
    side: Mapped[str] = mapped_column(String(6))
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    image: Mapped[str | None] = mapped_column("picture", String(60))


class ConversationFileRow(Base):
    """A stored image that came inside a request, and that an item shows."""

    __tablename__ = "conversation_files"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id"), primary_key=True, index=True)
