"""Whether the client of a running call has left, so that another gateway knows an equal request for its retry."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("claims", sa.Column("client_left", sa.Boolean, nullable=False, server_default=sa.false()))
