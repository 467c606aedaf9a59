"""Favourites among stored images, and the titles that people give to conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("results", sa.Column("favourite", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("responses", sa.Column("title", sa.String(200)))
    op.create_index("ix_responses_previous_id", "responses", ["previous_id"])
