"""A total for each month of a key, in place of the last month's alone: after a charge while a clock was ahead that was
of a month to come, and until then the budget of a month was no limit. All are added up anew."""

import sqlalchemy as sa
from alembic import op

from server.accounts.paging import month_end, month_start

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "key_months",
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), primary_key=True),
        sa.Column("month", sa.Float(), primary_key=True),
        sa.Column("settled", sa.BigInteger(), nullable=False),
    )
    connection = op.get_bind()
    fill = sa.text(
        "INSERT INTO key_months (key_id, month, settled) SELECT key_id, :since, SUM(amount) FROM entries "
        "WHERE created_at >= :since AND created_at < :until GROUP BY key_id"
    )
    first_at = sa.text("SELECT MIN(created_at) FROM entries WHERE created_at >= :since")
    since = connection.scalar(sa.text("SELECT MIN(created_at) FROM entries"))
    while since is not None:
        until = month_end(since)
        connection.execute(fill, {"since": month_start(since), "until": until})
        since = connection.scalar(first_at, {"since": until})
    op.drop_column("keys", "settled_in_month")
    op.drop_column("keys", "month")
