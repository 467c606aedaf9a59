"""Keys, holds, entries and results; entries are append-only."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

BIG = sa.BigInteger()
MAY_NOT_CHANGE = "ledger entries are append-only"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_table(
        "keys",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("tail", sa.String(4), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("budget", BIG),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float()),
        sa.Column("revoked_at", sa.Float()),
    )
    op.create_table(
        "holds",
        sa.Column("call_id", sa.String(40), primary_key=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False, index=True),
        sa.Column("endpoint", sa.String(60), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("price", BIG, nullable=False),
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False, index=True),
        sa.Column("reason", sa.String(60)),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("settled_at", sa.Float()),
        sa.CheckConstraint("state IN ('held', 'captured', 'void')", name="holds_state"),
    )
    op.create_table(
        "entries",
        sa.Column("id", BIG.with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("call_id", sa.String(40), sa.ForeignKey("holds.call_id"), nullable=False, unique=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False, index=True),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("amount", BIG, nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "results",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("call_id", sa.String(40), sa.ForeignKey("holds.call_id"), nullable=False, index=True),
        sa.Column("key_id", sa.String(40), sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("media_type", sa.String(40), nullable=False),
        sa.Column("width_px", sa.Integer(), nullable=False),
        sa.Column("height_px", sa.Integer(), nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    _forbid_changes(op.get_bind().dialect.name)


def _forbid_changes(dialect: str) -> None:
    if dialect == "postgresql":
        op.execute(
            "CREATE FUNCTION entries_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{MAY_NOT_CHANGE}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE ON entries "
            "FOR EACH ROW EXECUTE FUNCTION entries_append_only()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER entries_no_{change.lower()} BEFORE {change} ON entries "
            f"BEGIN SELECT RAISE(ABORT, '{MAY_NOT_CHANGE}'); END"
        )
