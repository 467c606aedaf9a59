"""Calls a minute that a key may begin, and results whose files were deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("keys", sa.Column("per_minute", sa.Integer()))
    op.add_column("results", sa.Column("deleted_at", sa.Float()))
