"""Monthly budgets, rotation, operators' keys, the audit table, a row for each call, and the origins of results."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

BIG = sa.BigInteger()


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("keys", sa.Column("monthly_budget", BIG))
    op.add_column("keys", sa.Column("note", sa.String(500), nullable=False, server_default=""))
    op.add_column("keys", sa.Column("previous_hash", sa.String(64)))
    op.add_column("keys", sa.Column("previous_until", sa.Float()))
    op.create_index("ix_keys_previous_hash", "keys", ["previous_hash"])
    for column in (
        sa.Column("seed", BIG),
        sa.Column("prompt", sa.Text()),
        sa.Column("parameters", sa.JSON()),
        sa.Column("parents", sa.JSON()),
    ):
        op.add_column("results", column)
    op.create_index("ix_results_age", "results", ["key_id", "created_at"])
    op.create_index("ix_entries_age", "entries", ["created_at"])
    op.create_table(
        "operators",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("tail", sa.String(4), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float()),
    )
    op.create_table(
        "audit",
        sa.Column("id", BIG.with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("operator", sa.String(200), nullable=False),
        sa.Column("action", sa.String(60), nullable=False),
        sa.Column("target", sa.String(300), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False, index=True),
    )
    op.create_table(
        "call_log",
        sa.Column("id", sa.String(60), primary_key=True),
        sa.Column("job", sa.String(60), index=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("endpoint", sa.String(100), nullable=False),
        sa.Column("model", sa.String(200)),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("code", sa.String(100)),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("queue_s", sa.Float()),
        sa.Column("run_s", sa.Float()),
        sa.Column("price", BIG, nullable=False),
        sa.Column("images", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", BIG),
        sa.Column("completion_tokens", BIG),
        sa.Column("replayed", sa.Boolean(), nullable=False),
        sa.Column("prompt", sa.Text()),
        sa.Column("parameters", sa.JSON()),
        sa.Column("created_at", sa.Float(), nullable=False, index=True),
    )
    op.create_index("ix_call_log_age", "call_log", ["key_id", "created_at"])
