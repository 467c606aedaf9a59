"""Teams of keys. Holds, charges and counts of chats name the team that their key had then; "" is none, as in all rows
that are there already."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

COUNTS = ("chats", "prompt_tokens", "completion_tokens")


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
    sums = [sa.Column("settled", sa.BigInteger, nullable=False)]
    _sum_by_team("key_months", [_key(), sa.Column("month", sa.Float, primary_key=True)], sums)
    groups = [
        _key(),
        sa.Column("model", sa.String(200), primary_key=True),
        sa.Column("day", sa.String(10), primary_key=True),
    ]
    _sum_by_team("chat_usage", groups, [sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS])
    op.create_index("ix_key_months_team", "key_months", ["team_id", "month"])


def _sum_by_team(table: str, groups: Sequence[sa.Column[Any]], sums: Sequence[sa.Column[Any]]) -> None:
    """Make a table of sums anew, with the team in its primary key. Its rows are of no team."""
    names = ", ".join(column.name for column in (*groups, *sums))
    op.execute(f"CREATE TABLE kept AS SELECT {names} FROM {table}")  # noqa: S608  # names of columns
    op.drop_table(table)
    op.create_table(table, *groups, _team(primary_key=True), *sums)
    op.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM kept")  # noqa: S608
    op.drop_table("kept")


def _key() -> sa.Column[str]:
    return sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), primary_key=True)


def _team(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column("team_id", sa.String(40), primary_key=primary_key, nullable=False, server_default="")
