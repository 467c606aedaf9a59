"""The database: one writer connection, many readers.

SQLite up to 3.51.2 can lose data when two connections write and checkpoint a WAL at the same time. So only one
connection writes and checkpoints; readers can do neither. Writers begin with BEGIN IMMEDIATE: a transaction that starts
as a reader and upgrades ignores the busy timeout. Other processes (the command line) write under SQLite's lock.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 30_000
READERS = 8


class Database:
    """A SQLite or PostgreSQL database, chosen by the URL."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._writer = self._engine(1, read_only=False)
        self._readers = self._engine(READERS, read_only=True)

    def migrate(self) -> None:
        """Bring the schema to this version."""
        from alembic import command
        from alembic.config import Config

        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # the option interpolates
        with self._writer.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction on the single writer connection; commits at the end, rolls back on an exception."""
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A read-only transaction on one snapshot; it never waits for the writer."""
        with Session(self._readers) as session:
            yield session

    def dispose(self) -> None:
        """Close all connections."""
        self._readers.dispose()
        self._writer.dispose()

    def _engine(self, connections: int, *, read_only: bool) -> Engine:
        engine = create_engine(
            self.url,
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=BUSY_TIMEOUT_MS / 1000,
            hide_parameters=True,  # errors are logged, and must not contain prompts
        )
        if self.is_sqlite:
            _set_up_sqlite(engine, read_only=read_only)
        elif read_only:
            _use_snapshot_isolation(engine)
        return engine


def _set_up_sqlite(engine: Engine, *, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if read_only:
            cursor.execute("PRAGMA query_only = ON")
            cursor.execute("PRAGMA wal_autocheckpoint = 0")
        else:
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute("PRAGMA synchronous = FULL")
            cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _use_snapshot_isolation(engine: Engine) -> None:
    """As SQLite's readers have it. PostgreSQL's default gives each statement of a transaction a new snapshot."""

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
