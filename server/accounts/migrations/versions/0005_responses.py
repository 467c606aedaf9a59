"""Stored responses, their items, and the images that came inside requests."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

STATES = "state IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "responses",
        sa.Column("id", sa.String(60), primary_key=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False, index=True),
        sa.Column("previous_id", sa.String(60)),
        sa.Column("state", sa.String(12), nullable=False, index=True),
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("echo", sa.JSON(), nullable=False),
        sa.Column("ended", sa.JSON()),
        sa.Column("events", sa.JSON()),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("fingerprint", sa.String(64)),
        sa.Column("created_at", sa.Float(), nullable=False, index=True),
        sa.UniqueConstraint("key_id", "idempotency_key", name="responses_idempotency_key"),
        sa.CheckConstraint(STATES, name="responses_state"),
    )
    op.create_table(
        "response_items",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("response_id", sa.String(60), sa.ForeignKey("responses.id"), nullable=False, index=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("item_id", sa.String(200), nullable=False, index=True),
        sa.Column("side", sa.String(6), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("picture", sa.String(60)),
    )
    op.create_table(
        "response_pictures",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("response_id", sa.String(60), sa.ForeignKey("responses.id"), nullable=False, index=True),
    )
