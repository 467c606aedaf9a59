"""${message}"""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Migrate to this revision. There is no way back: restore a backup instead."""
    ${upgrades if upgrades else "pass"}
