"""The rows of stored responses: their input and output items, and images by file name."""

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, String, UniqueConstraint, true
from sqlalchemy.orm import Mapped, mapped_column

from server.accounts.tables import AutoInteger, Base


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
