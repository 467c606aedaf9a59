"""Which files the servers of a database have written, and which storage is the database's."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "stored_files",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("written_at", sa.Float, nullable=False),
        sa.Column("trashed_at", sa.Float),
    )
    op.create_index("ix_stored_files_trashed_at", "stored_files", ["trashed_at"])
    op.create_table(
        "storage_owner",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("stamp", sa.String(32), nullable=False),
        sa.Column("next_stamp", sa.String(32)),
    )
    op.execute("INSERT INTO stored_files (name, written_at) SELECT name, created_at FROM results")
    for table in ("response_files", "conversation_files"):
        source = sa.table(table, sa.column("name"))
        stored = sa.table("stored_files", sa.column("name"), sa.column("written_at"))
        names = sa.select(source.c.name, sa.literal(time.time())).distinct()
        unknown = names.where(source.c.name.not_in(sa.select(stored.c.name)))
        op.execute(stored.insert().from_select(["name", "written_at"], unknown))
