"""Sorts errors of the database by what they mean for a retry: DatabaseBusy if the same transaction may succeed later,
DatabaseFailed if the disk or the file is to blame, neither if the statement is.

PostgreSQL's errors are sorted by their SQLSTATE. The driver's classes sort them by another question: one that says
"read-only" is an InternalError of psycopg's, as corrupted data is.
"""

import sqlite3

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from server.errors import DatabaseBusy, DatabaseFailed

SQLITE_FAILURES = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
SQLITE_DUPLICATE = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
POSTGRESQL_FAILURES = ("53100", "58", "XX")  # a full disk, errors of the system, corrupted data
DUPLICATE = "23505"
READ_ONLY = "25006"  # of a standby, or of a primary that was demoted or fenced
POSTGRESQL_BUSY = (
    "08",  # the connection
    READ_ONLY,
    "25P03", "25P04",  # the transaction took too long, and its connection is closed
    "40",  # serialization, deadlocks, conflicts with the recovery of a standby
    "53", "55P03", "55006",  # full resources, locks
    "57014", "57P01", "57P02", "57P03", "57P05",  # cancelled, shut down, crashed, not started yet
)  # fmt: skip
# The server says of these that nothing of the transaction was written
UNDONE = (READ_ONLY, "40001", "40P01", "53", "55P03", "55006", "57014")
SQLITE_UNDONE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}


def to_database_error(error: DBAPIError | PoolTimeout, *, began: bool) -> DatabaseBusy | None:
    """Return the error that a client gets; None for one that no retry helps. `began`: the transaction had begun."""
    reason = str(error).partition("\n")[0]
    if isinstance(error, PoolTimeout):
        return DatabaseBusy(reason, began=began, undone=not began)
    undone = not began or _sqlite_code(error) in SQLITE_UNDONE or sqlstate(error.orig).startswith(UNDONE)
    if is_failure(error.orig):
        return DatabaseFailed(reason, began=began, undone=undone)
    return DatabaseBusy(reason, began=began, undone=undone) if _is_busy(error) else None


def is_failure(error: BaseException | None) -> bool:
    """Return whether an error is of the disk or of the file on it."""
    if isinstance(error, sqlite3.Error):
        code: int = getattr(error, "sqlite_errorcode", 0)
        return code & 0xFF in SQLITE_FAILURES
    return sqlstate(error).startswith(POSTGRESQL_FAILURES)


def is_duplicate(error: BaseException | None) -> bool:
    """Return whether an error says that a row of these keys is there already."""
    return getattr(error, "sqlite_errorcode", None) in SQLITE_DUPLICATE or sqlstate(error) == DUPLICATE


def sqlstate(error: BaseException | None) -> str:
    """Return PostgreSQL's code of an error; "" without one, as where no connection could be made."""
    return getattr(error, "sqlstate", None) or ""


def _is_busy(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error) in SQLITE_BUSY
    if state := sqlstate(error.orig):
        return state.startswith(POSTGRESQL_BUSY)
    return isinstance(error, OperationalError)  # psycopg's: no connection


def _sqlite_code(error: DBAPIError) -> int:
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF  # the other bits say which kind
