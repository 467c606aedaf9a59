"""Whose key it is, of persons who sign in with an account of the house."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.add_column("keys", sa.Column("person", sa.String(600)))
    op.create_index("ix_keys_person", "keys", ["person"], unique=True)
