"""The database: one writer connection, many readers, each with threads of their own.

SQLite up to 3.51.2 can lose data when two connections write and checkpoint a WAL at the same time. So only one
connection writes and checkpoints; readers can do neither. Writers begin with BEGIN IMMEDIATE: a transaction that starts
as a reader and upgrades ignores the busy timeout. Other processes (the command line) write under SQLite's lock.

A lock can last (a backup, a disk that hangs, a forgotten shell), and so can the restart of a PostgreSQL server. A write
waits for its transaction to begin, for as long as its result is worth; then it is DatabaseBusy. Readers never wait for
it.
"""

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from pipelines.protocol.machine import extra_command
from server.accounts.copies import copy_sqlite
from server.accounts.db_errors import READ_ONLY, is_failure, sqlstate, to_database_error
from server.accounts.postgresql import ANSWER_LIMIT_S, limit_answers, replace_nul
from server.accounts.schema import is_newer, newest_schema, schema_problem, upgrade
from server.clock import Clock
from server.errors import DatabaseBusy, DatabaseFailed, StartError
from server.threads import NotBegun, Threads

log = structlog.stdlib.get_logger("darkroom.database")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

READERS = 8
PAGE = 1000  # rows that a sweep changes in one transaction, so that calls do not wait for it
REQUEST_LIMIT_S = 8.0  # a client can send its request again: it is told so soon
PATIENT_LIMIT_S = 300.0  # an image that was drawn, or the end of a response, would be lost
COMMAND_LIMIT_S = 30.0
MIGRATION_LOCK = 0x6461726B726F6F6D  # any number that no other program's advisory locks have
ATTEMPT_S = 0.5  # of a wait; then the time is looked at
CONNECT_LIMITS = {"connect_timeout": 5, "tcp_user_timeout": 10_000}  # in s and ms, of a host that went away silently


class Database:
    """A SQLite or PostgreSQL database, chosen by the URL.

    `write` and `read` block. On an event loop, `in_reader` and `in_writer` run a function that uses them in their
    threads.
    """

    def __init__(self, url: str | URL) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._writer = self._engine(1, read_only=False)
        self._readers = self._engine(READERS, read_only=True)
        self._write_threads = Threads("db-write", 1)
        self._read_threads = Threads("db-read", READERS)
        self._wait = _Wait()
        self.answer_limit_s = ANSWER_LIMIT_S  # of PostgreSQL, for a statement
        self.clock = Clock()  # the database's own, once `lease_now` has asked it
        self._stop_waiting_at = math.inf
        self.is_read_only = False  # PostgreSQL, when a write was last begun

    def migrate(self) -> None:
        """Bring the schema to this version: a server does it at its start. A SQLite file of an older one is copied
        first, to go back to. Raises DatabaseBusy, and StartError for the schema of a newer version."""
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            self._keep_before_upgrade(Path(self.url.database))
        with self.write() as session:
            if not self.is_sqlite:  # other servers may be at work in the tables, or start on an empty database too
                session.execute(text(f"SET LOCAL lock_timeout = '{COMMAND_LIMIT_S:g}s'"))
                session.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
                self.lease_now(session)
            before = _schema_version(session)
            if before is not None and is_newer(before):
                raise StartError(schema_problem(before))
            if not self.is_sqlite and before != newest_schema():
                self._require_alone(session, " of an older version")
            self.answer_limit_s, limit_s = math.inf, self.answer_limit_s
            try:
                upgrade(session.connection())
            finally:
                self.answer_limit_s = limit_s

    def require_alone(self) -> None:
        """Check that no server uses the database. Raises StartError."""
        with self.write() as session:
            self._require_alone(session, "")

    def _require_alone(self, session: Session, which: str) -> None:
        """Check that no server runs whose lease is in the database. A SQLite file has one server, by its lock."""
        if not inspect(session.connection()).has_table("gateways"):
            return
        # As `gateways.lease_ended` says it: by the columns of any version
        running = text("SELECT count(*) FROM gateways WHERE lease_until BETWEEN :now AND :now + 7200")
        if count := session.scalar(running, {"now": self.lease_now(session)}):
            raise StartError(
                f"{count} server(s){which} use the database: stop them first. One that was killed counts "
                "until its lease has run out (DARKROOM_LEASE_S)."
            )

    def schema_version(self) -> str | None:
        """Return the number of the last migration; None for a database without tables. A SQLite file that is not there
        is not made. Raises DatabaseBusy, DatabaseFailed."""
        if self.is_sqlite and self.url.database and not Path(self.url.database).exists():
            return None
        with self.read() as session:
            self.lease_now(session)
            return _schema_version(session)

    def _keep_before_upgrade(self, path: Path) -> None:
        before = self.schema_version()
        if before is not None and before != newest_schema() and not is_newer(before):
            kept = path.with_name(f"{path.name}.schema-{before}")
            copy_sqlite(path, kept)
            log.info("the database is upgraded; its copy is kept", schema=before, copy=str(kept))

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction on the single writer connection; it commits at the end, and rolls back on an exception.

        Raises DatabaseBusy if it can't begin in time, or is cut off, and DatabaseFailed.
        """
        began = False
        try:
            with self._begin_write() as session:
                began = True
                yield session
                session.commit()
        except (DBAPIError, PoolTimeout) as error:
            if (busy := to_database_error(error, began=began)) is None:
                raise
            raise busy from error

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a read-only transaction on one snapshot; it never waits for the writer. Raises DatabaseBusy if the
        database can't be reached, and DatabaseFailed."""
        try:
            with Session(self._readers) as session:
                yield session
        except (DBAPIError, PoolTimeout) as error:
            if (busy := to_database_error(error, began=False)) is None:
                raise
            raise busy from error

    async def in_reader(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run blocking work that only reads in a thread, and return its result. Raises DatabaseBusy if every reader is
        busy for REQUEST_LIMIT_S."""
        return await _run(self._read_threads, REQUEST_LIMIT_S, partial(work, *args, **kwargs))

    async def in_writer(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run blocking work that writes in the writer's thread, and return its result. Raises DatabaseBusy if it can't
        begin within REQUEST_LIMIT_S, and at once DatabaseFailed."""
        return await self._write_within(REQUEST_LIMIT_S, partial(work, *args, **kwargs), patient=False)

    async def retry_in_writer(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Write as `in_writer` does, within PATIENT_LIMIT_S: for rows that would be lost otherwise, of which there are
        few.

        The work is repeated while nothing of it was written: the disk is full, or the database read-only.
        """
        return await self._write_within(PATIENT_LIMIT_S, partial(work, *args, **kwargs), patient=True)

    def lease_now(self, session: Session) -> float:
        """Return Unix seconds by the clock that leases are written and compared by: servers that share a database must
        agree. A SQLite database has one server."""
        if self.is_sqlite:
            return self.clock.steady()
        now = float(session.scalars(select(func.extract("epoch", func.clock_timestamp()))).one())
        self.clock.follow(now)
        return now

    def stop_waiting(self) -> None:
        """Let no write wait for longer than a request's would, from now on: the server ends."""
        self._stop_waiting_at = time.monotonic() + REQUEST_LIMIT_S

    def dispose(self) -> None:
        """Close all connections."""
        self._readers.dispose()
        self._writer.dispose()

    async def _write_within(self, limit_s: float, work: Callable[[], Result], *, patient: bool) -> Result:
        """Run a write in the writer's thread. Writes begin in the order in which they came. However many requests come,
        those that wait are REQUEST_LIMIT_S old at most: so the renewal of leases gets its turn."""
        until = time.monotonic() + limit_s

        def write() -> Result:
            self._wait.until = until
            while True:
                try:
                    return work()
                except DatabaseBusy as error:
                    if not (patient and error.undone) or time.monotonic() >= min(until, self._stop_waiting_at):
                        raise
                time.sleep(ATTEMPT_S)

        return await _run(self._write_threads, limit_s, write)

    def _begin_write(self) -> Session:
        """Return a session whose transaction has begun, once there is a connection and it has the lock."""
        until = self._wait.until or time.monotonic() + COMMAND_LIMIT_S
        while True:
            session = Session(self._writer, expire_on_commit=False)
            try:
                session.connection()
            except BaseException as error:
                session.close()
                is_late = time.monotonic() >= min(until, self._stop_waiting_at)
                if is_late or not _may_pass(error):
                    raise
                if "too many connections" in str(error) or "connection slots" in str(error):
                    self._readers.dispose()  # idle ones have the last that the server allows
            else:
                return session
            if not self.is_sqlite:  # which has waited in BEGIN
                time.sleep(ATTEMPT_S)

    def _engine(self, connections: int, *, read_only: bool) -> Engine:
        try:
            engine = self._create_engine(connections)
        except ModuleNotFoundError as error:
            raise StartError(f"DARKROOM_DATABASE needs {error.name}: {extra_command('postgres')}") from error
        if self.is_sqlite:
            _set_up_sqlite(engine, read_only=read_only)
            return engine
        limit_answers(engine, lambda: self.answer_limit_s)
        replace_nul(engine)
        if read_only:  # one snapshot a transaction, as SQLite's readers have it
            engine.update_execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        else:
            self._begin_writable(engine)
        return engine

    def _begin_writable(self, engine: Engine) -> None:
        """Begin transactions only on a server that takes writes. A connection to a server that was demoted or fenced is
        dropped: the next one may reach the server in its place. Then readers connect anew, too, and read there the rows
        that were written."""

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # PostgreSQL's default is to wait for another transaction's row for ever, and all other writes with it
            limit = f"set_config('lock_timeout', '{REQUEST_LIMIT_S:g}s', true)"
            found = connection.exec_driver_sql(f"SELECT {limit}, current_setting('transaction_read_only')").one()
            was_read_only, self.is_read_only = self.is_read_only, found[1] == "on"
            if self.is_read_only:
                connection.invalidate()
                raise DatabaseBusy("PostgreSQL takes no writes: it is a standby or read-only", began=False, undone=True)
            if was_read_only:
                self._readers.dispose()

        @event.listens_for(engine, "handle_error")
        def drop(context: ExceptionContext) -> None:
            if sqlstate(context.original_exception) == READ_ONLY:
                context.is_disconnect = True

    def _connect_arguments(self) -> dict[str, Any]:
        """No statement is prepared at the server: pgbouncer may give each transaction another connection there, which
        does not know it."""
        limits = {name: value for name, value in CONNECT_LIMITS.items() if name not in self.url.query}
        return {**limits, "prepare_threshold": None}

    def _create_engine(self, connections: int) -> Engine:
        return create_engine(
            self.url,
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=COMMAND_LIMIT_S,
            pool_pre_ping=not self.is_sqlite,  # connections are dead after PostgreSQL was restarted
            hide_parameters=True,  # errors are logged, and must not contain prompts
            connect_args={} if self.is_sqlite else self._connect_arguments(),
        )


@contextmanager
def connect_database(url: str | URL) -> Iterator[Database]:
    """Open a database while this is entered."""
    database = Database(url)
    try:
        yield database
    finally:
        database.dispose()


def _schema_version(session: Session) -> str | None:
    if not inspect(session.connection()).has_table("alembic_version"):
        return None
    version: str | None = session.scalar(text("SELECT version_num FROM alembic_version"))
    return version


def _may_pass(error: BaseException) -> bool:
    """Return whether a transaction that could not begin may do so soon."""
    if isinstance(error, DBAPIError):
        error = to_database_error(error, began=False) or error
    return isinstance(error, DatabaseBusy) and not isinstance(error, DatabaseFailed)


class _Wait(threading.local):
    """The time until which the writes of this thread wait to begin, in time.monotonic(); None is COMMAND_LIMIT_S from
    then."""

    until: float | None = None


async def _run(threads: Threads, limit_s: float, work: Callable[[], Result]) -> Result:
    try:
        return await threads.run_if_begun_within(limit_s, work)
    except NotBegun as error:
        raise DatabaseBusy("its other work does not end", began=False, undone=True) from error
    except DatabaseBusy as error:
        log.warning("the database is busy or out of reach", reason=error.reason)
        raise


def _set_up_sqlite(engine: Engine, *, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {ATTEMPT_S * 1000:.0f}")
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

    @event.listens_for(engine, "handle_error")
    def delete_pages(context: ExceptionContext) -> None:
        """Close a connection after a failure: it keeps the pages that it has read of a damaged file, also when that has
        been mended. It is rolled back too, for it would keep its lock until the last object that refers to it is
        gone."""
        if is_failure(context.original_exception):
            context.is_disconnect = True
            if context.connection is not None and not context.connection.invalidated:
                with suppress(sqlite3.Error):
                    context.connection.connection.rollback()
