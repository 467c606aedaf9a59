"""The catalog that several servers serve, version by version, and the console's sessions: any server knows them."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "catalogs",
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("weights", sa.JSON(), nullable=False),
        sa.Column("edits", sa.JSON(), nullable=False),
        sa.Column("change", sa.String(60), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.add_column("gateways", sa.Column("changing", sa.String(60)))
    op.add_column("gateways", sa.Column("catalog_version", sa.Integer()))
    op.create_table(
        "console_sessions",
        sa.Column("cookie_hash", sa.String(64), primary_key=True),
        sa.Column("subject", sa.String(100), nullable=False),
        sa.Column("ends_at", sa.Float(), nullable=False, index=True),
    )
