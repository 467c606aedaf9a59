"""The rows of stored images, of the files that were written, and of the storage that has them."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from server.accounts.tables import Base


class ResultRow(Base):
    """A stored image. `name` is its file name and the last part of its URL."""

    __tablename__ = "results"
    __table_args__ = (Index("ix_results_age", "key_id", "created_at"),)

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    call_id: Mapped[str] = mapped_column(ForeignKey("holds.call_id"), index=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"))
    position: Mapped[int]
    media_type: Mapped[str] = mapped_column(String(40))
    width_px: Mapped[int]
    height_px: Mapped[int]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)  # finds the image that a client sends back as a file
    created_at: Mapped[float] = mapped_column(index=True)
    deleted_at: Mapped[float | None]  # since then, its file may be deleted
    favourite: Mapped[bool] = mapped_column(server_default=false())
    # the rest only while prompts are kept, and until it is deleted
    seed: Mapped[int | None] = mapped_column(BigInteger)
    prompt: Mapped[str | None] = mapped_column(Text)
    parameters: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    parents: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))  # names of results it was made from


class StoredFileRow(Base):
    """A file that a server of this database has written, or was about to. A file without a row is somebody else's, or
    of a time that this database does not remember: nothing removes it."""

    __tablename__ = "stored_files"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    written_at: Mapped[float]
    trashed_at: Mapped[float | None] = mapped_column(index=True)


class StorageOwnerRow(Base):
    """The one row that says which storage is this database's: `id` lies there, too, and so does the newest `stamp`.
    `next_stamp`: one that is being written."""

    __tablename__ = "storage_owner"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    stamp: Mapped[str] = mapped_column(String(32))
    next_stamp: Mapped[str | None] = mapped_column(String(32))
