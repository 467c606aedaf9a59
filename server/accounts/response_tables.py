"""The rows of stored responses, conversations and batches: their items, lines, and images by file name."""

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, false, true
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


class ResponseRow(Base):
    """A response. While it runs it has an owner: a server process.

    One that is not `stored` is there for retries only: it can't be retrieved or continued from.
    """

    __tablename__ = "responses"
    __table_args__ = (
        CheckConstraint(
            "state IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')",
            name="responses_state",
        ),
        UniqueConstraint("key_id", "idempotency_key", name="responses_idempotency_key"),
    )

    id: Mapped[str] = mapped_column(String(60), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), index=True)
    previous_id: Mapped[str | None] = mapped_column(String(60), index=True)
    state: Mapped[str] = mapped_column(String(12), index=True)
    owner: Mapped[str] = mapped_column(String(40))
    background: Mapped[bool]
    echo: Mapped[dict[str, Any]] = mapped_column(JSON)  # the request's fields that the response object repeats
    ended: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # the fields that are known at its end only
    events: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON)  # of a background response, for a later stream
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    fingerprint: Mapped[str | None] = mapped_column(String(64), index=True)
    conversation_id: Mapped[str | None] = mapped_column(String(60))
    title: Mapped[str | None] = mapped_column(String(200))  # that its person gave
    stored: Mapped[bool] = mapped_column(server_default=true())
    # see CallRecord; `heard` on disk
    delivered: Mapped[bool] = mapped_column("heard", server_default=true())
    created_at: Mapped[float] = mapped_column(index=True)
    ended_at: Mapped[float | None]


class ItemRow(Base):
    """One item of a response; `side` is input or output. An `item_id` may repeat: a caller may send back an item of an
    earlier response."""

    __tablename__ = "response_items"

    id: Mapped[int] = mapped_column(AutoInteger, primary_key=True, autoincrement=True)
    response_id: Mapped[str] = mapped_column(ForeignKey("responses.id"), index=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    item_id: Mapped[str] = mapped_column(String(200), index=True)
    side: Mapped[str] = mapped_column(String(6))
    position: Mapped[int]
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    image: Mapped[str | None] = mapped_column("picture", String(60))  # the stored file of an image_generation_call


class FileRow(Base):
    """A stored image that came inside a request, so it has no charge and no row in `results`."""

    __tablename__ = "response_files"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    response_id: Mapped[str] = mapped_column(ForeignKey("responses.id"), primary_key=True, index=True)


class BatchRow(Base):
    """A batch: calls that a server sends to itself, one by one, with the key that created it."""

    __tablename__ = "batches"
    __table_args__ = (
        CheckConstraint(
            "state IN ('in_progress', 'cancelling', 'completed', 'cancelled', 'expired')", name="batches_state"
        ),
        Index("ix_batches_age", "key_id", "created_at"),
        Index("ix_batches_idempotency_key", "key_id", "idempotency_key", unique=True),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    endpoint: Mapped[str | None] = mapped_column(String(60))
    source: Mapped[str | None] = mapped_column(String(400))  # the path of the input, if it is a file
    base: Mapped[str] = mapped_column(String(300))  # the server's address, as the client has it
    state: Mapped[str] = mapped_column(String(20), index=True)
    owner: Mapped[str | None] = mapped_column(String(40))  # the server that runs it
    total: Mapped[int]
    labels: Mapped[dict[str, Any]] = mapped_column(JSON)  # the client's metadata
    created_at: Mapped[float] = mapped_column(index=True)
    expires_at: Mapped[float]
    cancelling_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    fingerprint: Mapped[str] = mapped_column(String(64), server_default="")
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    answer_lost: Mapped[bool] = mapped_column(server_default=false())  # the id of the batch has not reached its client


class BatchLineRow(Base):
    """A line of a batch: a call's body and, when it has ended, its answer."""

    __tablename__ = "batch_lines"
    __table_args__ = (Index("ix_batch_lines_ended", "batch_id", "status"),)

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    custom_id: Mapped[str] = mapped_column(String(200))
    url: Mapped[str] = mapped_column(String(60))
    body: Mapped[str] = mapped_column(Text)
    status: Mapped[int | None]  # of HTTP; None until it has ended
    request_id: Mapped[str | None] = mapped_column(String(80))
    answer: Mapped[str | None] = mapped_column(Text)
