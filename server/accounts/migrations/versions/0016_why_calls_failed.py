"""Why calls failed: the message and the field of their errors, in the log of calls."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("call_log", sa.Column("message", sa.String(1000)))
    op.add_column("call_log", sa.Column("param", sa.String(200)))
