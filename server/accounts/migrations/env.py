"""Alembic runs in the transaction that `Database.migrate` opened."""

from alembic import context

from server.accounts import (  # noqa: F401
    operator_tables,
    response_tables,
    result_tables,
)
from server.accounts.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()
