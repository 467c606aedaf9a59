"""Which nodes of a Ray cluster are used is for Ray to know."""

from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.drop_table("cluster_boxes")
