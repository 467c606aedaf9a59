"""Conversations: items that the rounds of several responses are added to."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(60), primary_key=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False, index=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=False, index=True),
    )
    op.create_table(
        "conversation_items",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("conversation_id", sa.String(60), sa.ForeignKey("conversations.id"), nullable=False, index=True),
        sa.Column("item_id", sa.String(200), nullable=False, index=True),
        sa.Column("response_id", sa.String(60)),
        sa.Column("side", sa.String(6), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("picture", sa.String(60)),
    )
    op.create_table(
        "conversation_files",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("conversation_id", sa.String(60), sa.ForeignKey("conversations.id"), primary_key=True, index=True),
    )
    op.add_column("responses", sa.Column("conversation_id", sa.String(60)))
