"""Several servers on one database: which of them run, and which calls run where. The sum of each key's charges: a hold
need not add them up."""

import time

import sqlalchemy as sa
from alembic import op

from server.accounts.paging import month_start

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("keys", sa.Column("settled", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("keys", sa.Column("settled_in_month", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("keys", sa.Column("month", sa.Float()))
    totals = sa.text(
        "UPDATE keys SET month = :since, "
        "settled = COALESCE((SELECT SUM(amount) FROM entries WHERE key_id = keys.id), 0), settled_in_month = "
        "COALESCE((SELECT SUM(amount) FROM entries WHERE key_id = keys.id AND entries.created_at >= :since), 0)"
    )
    op.execute(totals.bindparams(since=month_start(time.time())))
    op.create_index("ix_results_created_at", "results", ["created_at"])
    op.create_table(
        "gateways",
        sa.Column("owner", sa.String(40), primary_key=True),
        sa.Column("url", sa.String(200)),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("id", sa.String(60), primary_key=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False, index=True),
        sa.Column("endpoint", sa.String(60), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("begun_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
    )
    op.drop_column("responses", "lease_until")  # its server's own says the same
