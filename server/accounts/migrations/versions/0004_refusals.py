"""The refusals of the moderation policy."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "refusals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("call_id", sa.String(60), nullable=False),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False, index=True),
        sa.Column("endpoint", sa.String(60), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("stage", sa.String(10), nullable=False),
        sa.Column("policy", sa.String(100), nullable=False),
        sa.Column("category", sa.String(100), nullable=False),
        sa.Column("evidence", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
