"""What tells that a request for a batch repeats another."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("batches", sa.Column("fingerprint", sa.String(64), nullable=False, server_default=""))
    op.add_column("batches", sa.Column("idempotency_key", sa.String(255)))
    op.add_column("batches", sa.Column("answer_lost", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_index("ix_batches_idempotency_key", "batches", ["key_id", "idempotency_key"], unique=True)
