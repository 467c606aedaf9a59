"""Teams of keys. Holds, charges and counts of chats name the team that their key had then; "" is none, as in all rows
that are there already."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

SUMS = {"key_months": ["key_id", "month"], "chat_usage": ["key_id", "model", "day"]}


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "teams",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("monthly_budget", sa.BigInteger),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    for table in ("keys", "holds", "entries"):
        op.add_column(table, _team())
    for table, key in SUMS.items():
        with op.batch_alter_table(table) as batch:
            batch.add_column(_team())
            if op.get_bind().dialect.name == "postgresql":
                batch.drop_constraint(f"{table}_pkey", type_="primary")
            batch.create_primary_key(f"{table}_pkey", [*key, "team_id"])
    op.create_index("ix_key_months_team", "key_months", ["team_id", "month"])


def _team() -> sa.Column[str]:
    return sa.Column("team_id", sa.String(40), nullable=False, server_default="")
