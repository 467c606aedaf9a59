"""From SQLite to PostgreSQL: the rows of a copy, table by table, for a server that becomes several."""

from pathlib import Path

from sqlalchemy import URL, BigInteger, Table, delete, func, insert, select, text
from sqlalchemy.orm import Session

from server.accounts.db import PAGE, Database, connect_database
from server.accounts.schema import all_tables
from server.accounts.stored_files import write_owner


def fill_from_sqlite(url: URL, copy: Path) -> None:
    """Replace the content of a PostgreSQL database, which nobody may use, by that of a SQLite file, which is brought to
    this version first. One transaction: whole or not at all. It does not own a storage then. Raises DatabaseBusy and
    StartError."""
    with connect_database(URL.create("sqlite", database=str(copy))) as source, connect_database(url) as target:
        source.migrate()
        target.migrate()
        _copy_rows(source, target)


def _copy_rows(source: Database, target: Database) -> None:
    tables = all_tables().sorted_tables  # each after those that its rows refer to
    with source.read() as rows, target.write() as session:
        for table in reversed(tables):
            session.execute(delete(table))
        for table in tables:
            for page in rows.execute(select(table)).mappings().partitions(PAGE):
                session.execute(insert(table), [dict(row) for row in page])
            _continue_numbers(session, table)
        write_owner(session, None)


def _continue_numbers(session: Session, table: Table) -> None:
    """Let PostgreSQL number new rows after those that were copied."""
    column = table.autoincrement_column
    if column is None or not isinstance(column.type, BigInteger):
        return
    newest = session.scalar(select(func.max(column)))
    if newest is not None:
        sequence = "SELECT setval(pg_get_serial_sequence(:table, :column), :newest)"
        session.execute(text(sequence), {"table": table.name, "column": column.name, "newest": newest})
