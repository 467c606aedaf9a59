"""The rows. Times are Unix seconds in floats, so that every database compares them the same way."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ValueT = TypeVar("ValueT", bound="DataclassInstance")
AutoInteger = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements INTEGER PRIMARY KEY only


class Base(DeclarativeBase):
    """The base class of all tables."""

    type_annotation_map: ClassVar = {float: Float}  # SQLAlchemy's own choice is another one in every version

    def to(self, kind: type[ValueT], **others: Any) -> ValueT:
        """Return a dataclass with the columns of its fields' names. `others` are fields that no column is."""
        names = {each.name for each in fields(kind)} - others.keys()
        return kind(**{name: getattr(self, name) for name in names}, **others)


class KeyRow(Base):
    """An API key. Only a hash of its secret is stored."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    tail: Mapped[str] = mapped_column(String(4))
    groups: Mapped[list[str]] = mapped_column(JSON)
    budget: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    max_running: Mapped[int | None]
    per_minute: Mapped[int | None]
    keepalive: Mapped[bool] = mapped_column(server_default=false())
    monthly_budget: Mapped[int | None] = mapped_column(BigInteger)
    note: Mapped[str] = mapped_column(String(500), server_default="")
    previous_hash: Mapped[str | None] = mapped_column(String(64), index=True)  # of the secret before a rotation
    previous_until: Mapped[float | None]
    settled: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # the sum of its entries
    team_id: Mapped[str] = mapped_column(String(40), server_default="")
    person: Mapped[str | None] = mapped_column(String(600), index=True, unique=True)  # who signs in with it


class TeamRow(Base):
    """Keys that share a monthly budget. Elsewhere a `team_id` is the team that the key had then, or "" for none."""

    __tablename__ = "teams"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    monthly_budget: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float]


class KeyMonthRow(Base):
    """The sum of a key's charges for a team in a month, which is named by its beginning. There is a row for each month
    with entries: at whatever time by the clock a charge was written, no other month's total changes."""

    __tablename__ = "key_months"
    __table_args__ = (Index("ix_key_months_team", "team_id", "month"),)

    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), primary_key=True)
    month: Mapped[float] = mapped_column(primary_key=True)
    team_id: Mapped[str] = mapped_column(String(40), primary_key=True, server_default="")
    settled: Mapped[int] = mapped_column(BigInteger)


class HoldRow(Base):
    """Money reserved for a call while it runs; it ends captured or void."""

    __tablename__ = "holds"
    __table_args__ = (
        CheckConstraint("state IN ('held', 'captured', 'void')", name="holds_state"),
        Index("ix_holds_sums", "key_id", "state", "price"),
    )

    call_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    endpoint: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(200))
    price: Mapped[int] = mapped_column(BigInteger)
    owner: Mapped[str] = mapped_column(String(40))
    lease_until: Mapped[float]
    state: Mapped[str] = mapped_column(String(10), index=True)
    reason: Mapped[str | None] = mapped_column(String(60))
    created_at: Mapped[float]
    settled_at: Mapped[float | None]
    team_id: Mapped[str] = mapped_column(String(40), server_default="")


class EntryRow(Base):
    """A charge. Append-only: triggers refuse every update and delete."""

    __tablename__ = "entries"
    __table_args__ = (Index("ix_entries_sums", "key_id", "amount"), Index("ix_entries_age", "created_at"))

    id: Mapped[int] = mapped_column(AutoInteger, primary_key=True, autoincrement=True)
    call_id: Mapped[str] = mapped_column(ForeignKey("holds.call_id"), unique=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    model: Mapped[str] = mapped_column(String(200))
    amount: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float]
    team_id: Mapped[str] = mapped_column(String(40), server_default="")


class ChatUsageRow(Base):
    """The tokens of one key's chats with one model, for a team, on one day (UTC, YYYY-MM-DD)."""

    __tablename__ = "chat_usage"

    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), primary_key=True)
    model: Mapped[str] = mapped_column(String(200), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    team_id: Mapped[str] = mapped_column(String(40), primary_key=True, server_default="")
    chats: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class CallRow(Base):
    """The outcome of a call, for retries. Its money is in its hold and its entry."""

    __tablename__ = "calls"
    __table_args__ = (
        UniqueConstraint("key_id", "endpoint", "idempotency_key", name="calls_idempotency_key"),
        CheckConstraint("state IN ('running', 'succeeded', 'failed', 'cancelled')", name="calls_state"),
        Index("ix_calls_same", "key_id", "endpoint", "fingerprint", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    endpoint: Mapped[str] = mapped_column(String(60))
    fingerprint: Mapped[str] = mapped_column(String(64))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    owner: Mapped[str] = mapped_column(String(40))
    state: Mapped[str] = mapped_column(String(10), index=True)
    status: Mapped[int | None]
    answer: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    replayable: Mapped[bool] = mapped_column("kept")  # a retry gets this answer; `kept` on disk
    delivered: Mapped[bool] = mapped_column("heard")  # see CallRecord; `heard` on disk
    created_at: Mapped[float] = mapped_column(index=True)
    ended_at: Mapped[float | None]


class GatewayRow(Base):
    """A server that runs. Rows of an owner without a row here have lost their server.

    `url`: where the others reach it; None if it runs alone. `changing`: the change of the catalog that it makes for all
    of them; `catalog_version`: the version that it serves.
    """

    __tablename__ = "gateways"

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str | None] = mapped_column(String(200))
    started_at: Mapped[float]
    lease_until: Mapped[float]
    changing: Mapped[str | None] = mapped_column(String(60))
    catalog_version: Mapped[int | None]


class CatalogRow(Base):
    """A catalog that several gateways served or serve: the newest is current.

    `files`: the text of each file. `weights`: the SHA-256 of the weights that they name, by path. `edits`: the swaps
    that can be undone, oldest first. `change` made it.
    """

    __tablename__ = "catalogs"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    files: Mapped[dict[str, str]] = mapped_column(JSON)
    weights: Mapped[dict[str, str]] = mapped_column(JSON)
    edits: Mapped[list[dict[str, str]]] = mapped_column(JSON)
    change: Mapped[str] = mapped_column(String(60))
    created_at: Mapped[float]


class ConsoleSessionRow(Base):
    """A browser that has signed in. Only a hash of its cookie is stored. `subject`: the key or the operator."""

    __tablename__ = "console_sessions"

    cookie_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    subject: Mapped[str] = mapped_column(String(100))
    ends_at: Mapped[float] = mapped_column(index=True)


class ClaimRow(Base):
    """A call, chat or response that runs on one of several gateways, or began within the last minute.

    `counted`: towards its key's limits. `client_left`: an equal request may be its retry.
    """

    __tablename__ = "claims"

    id: Mapped[str] = mapped_column(String(60), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), index=True)
    endpoint: Mapped[str] = mapped_column(String(60))
    fingerprint: Mapped[str] = mapped_column(String(64))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    owner: Mapped[str] = mapped_column(String(40))
    counted: Mapped[bool]
    client_left: Mapped[bool] = mapped_column(server_default=false(), default=False)
    begun_at: Mapped[float]
    ended_at: Mapped[float | None]


class WebhookRow(Base):
    """A webhook that tells of a call's end, until it is delivered or given up. `next_at`: it is not sent before."""

    __tablename__ = "webhooks"

    call_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str] = mapped_column(String(2000))
    attempts: Mapped[int]
    next_at: Mapped[float] = mapped_column(index=True)


class RefusalRow(Base):
    """A request or result that the moderation policy refused. The image or prompt is never stored."""

    __tablename__ = "refusals"

    id: Mapped[int] = mapped_column(AutoInteger, primary_key=True, autoincrement=True)
    call_id: Mapped[str] = mapped_column(String(60))
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), index=True)
    endpoint: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(200))
    stage: Mapped[str] = mapped_column(String(10))
    policy: Mapped[str] = mapped_column(String(100))
    category: Mapped[str] = mapped_column(String(100))
    evidence: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[float]
