"""The boxes of a Ray cluster that are used, and those that were taken out: a supervisor that restarts knows them."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "cluster_boxes",
        sa.Column("node", sa.String(60), primary_key=True),
        sa.Column("drained", sa.Boolean(), nullable=False),
    )
