"""Where to tell that a call has ended."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "webhooks",
        sa.Column("call_id", sa.String(40), primary_key=True),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Float(), nullable=False, index=True),
    )
