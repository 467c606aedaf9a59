"""The rows of batches and of their lines."""

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from server.accounts.tables import Base


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
