"""Alembic runs in the transaction that `Database.migrate` opened."""

from alembic import context

from server.accounts.schema import all_tables

context.configure(
    connection=context.config.attributes["connection"], target_metadata=all_tables(), render_as_batch=True
)
context.run_migrations()
