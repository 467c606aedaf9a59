"""Batches, and their lines."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

STATES = "state IN ('in_progress', 'cancelling', 'completed', 'cancelled', 'expired')"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "batches",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("endpoint", sa.String(60)),
        sa.Column("source", sa.String(400)),
        sa.Column("base", sa.String(300), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("owner", sa.String(40)),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("cancelling_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.CheckConstraint(STATES, name="batches_state"),
    )
    op.create_index("ix_batches_age", "batches", ["key_id", "created_at"])
    op.create_index("ix_batches_state", "batches", ["state"])
    op.create_index("ix_batches_created_at", "batches", ["created_at"])
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(40), sa.ForeignKey("batches.id"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("custom_id", sa.String(200), nullable=False),
        sa.Column("url", sa.String(60), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("request_id", sa.String(80)),
        sa.Column("answer", sa.Text),
    )
    op.create_index("ix_batch_lines_ended", "batch_lines", ["batch_id", "status"])
