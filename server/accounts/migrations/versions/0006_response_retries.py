"""Responses that are kept for retries alone, whether their end was heard, and images that several responses share."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("responses", sa.Column("stored", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("responses", sa.Column("heard", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("responses", sa.Column("ended_at", sa.Float()))
    op.create_index("ix_responses_fingerprint", "responses", ["fingerprint"])
    op.create_table(
        "response_files",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("response_id", sa.String(60), sa.ForeignKey("responses.id"), primary_key=True, index=True),
    )
    op.execute("INSERT INTO response_files (name, response_id) SELECT name, response_id FROM response_pictures")
    op.drop_table("response_pictures")
