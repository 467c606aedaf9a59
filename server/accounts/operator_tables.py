"""The rows that operators read: their own keys, their changes, and every call."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from server.accounts.tables import AutoInteger, Base


class OperatorRow(Base):
    """An admin key of one person. Only a hash of its secret is stored."""

    __tablename__ = "operators"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    tail: Mapped[str] = mapped_column(String(4))
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]


class AuditRow(Base):
    """A change that an operator made. `details` has no secret."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(AutoInteger, primary_key=True, autoincrement=True)
    operator: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(60))
    target: Mapped[str] = mapped_column(String(300))
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(index=True)


class CallLogRow(Base):
    """A request that runs a model, however it ended. `id` is the request's; `job` the image call's or response's."""

    __tablename__ = "call_log"
    __table_args__ = (Index("ix_call_log_age", "key_id", "created_at"),)

    id: Mapped[str] = mapped_column(String(60), primary_key=True)
    job: Mapped[str | None] = mapped_column(String(60), index=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    endpoint: Mapped[str] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[int]
    code: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str | None] = mapped_column(String(1000))
    param: Mapped[str | None] = mapped_column(String(200))
    seconds: Mapped[float]
    queue_s: Mapped[float | None]
    run_s: Mapped[float | None]
    price: Mapped[int] = mapped_column(BigInteger)
    images: Mapped[int]
    prompt_tokens: Mapped[int | None] = mapped_column(BigInteger)
    completion_tokens: Mapped[int | None] = mapped_column(BigInteger)
    replayed: Mapped[bool]
    prompt: Mapped[str | None] = mapped_column(Text)
    parameters: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[float] = mapped_column(index=True)
