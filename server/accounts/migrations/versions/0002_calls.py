"""Calls, for retries; how many calls a key may have at once; indexes for the sums that every hold takes."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "calls",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("endpoint", sa.String(60), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("state", sa.String(10), nullable=False, index=True),
        sa.Column("status", sa.Integer()),
        sa.Column("answer", sa.JSON()),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.Column("heard", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False, index=True),
        sa.Column("ended_at", sa.Float()),
        sa.UniqueConstraint("key_id", "endpoint", "idempotency_key", name="calls_idempotency_key"),
        sa.CheckConstraint("state IN ('running', 'succeeded', 'failed', 'cancelled')", name="calls_state"),
    )
    op.create_index("ix_calls_same", "calls", ["key_id", "endpoint", "fingerprint", "created_at"])
    op.add_column("keys", sa.Column("max_running", sa.Integer()))
    op.add_column("keys", sa.Column("keepalive", sa.Boolean(), nullable=False, server_default=sa.false()))
    # They hold all that the sums need, and their first columns serve what the old ones did.
    op.create_index("ix_holds_sums", "holds", ["key_id", "state", "price"])
    op.create_index("ix_entries_sums", "entries", ["key_id", "amount"])
    op.drop_index("ix_holds_key_id", "holds")
    op.drop_index("ix_entries_key_id", "entries")
