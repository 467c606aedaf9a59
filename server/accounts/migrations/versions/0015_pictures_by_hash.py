"""Images by their hash: an edit of an image that a client sends back as a file has it as its parent."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    op.create_index("ix_results_sha256", "results", ["sha256"])
