"""Copies of the database while others use it: SQLite's by its own backup, PostgreSQL's by pg_dump."""

import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import URL

from server.errors import StartError

SQLITE_NAME, POSTGRESQL_NAME = "darkroom.db", "darkroom.dump"
DISOWN = "DELETE FROM storage_owner"  # which storage is the database's
DISOWN_IF_THERE = f"DO $$ BEGIN IF to_regclass('storage_owner') IS NOT NULL THEN {DISOWN}; END IF; END $$"


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy the database as it is at one moment, whoever writes meanwhile. `target` is replaced. Raises StartError."""
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    address = f"{source.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as reader, closing(sqlite3.connect(part)) as copy:
            reader.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a WAL beside it
    except sqlite3.Error as error:  # such as a damaged file, a full disk
        part.unlink(missing_ok=True)
        raise StartError(f"{source} can't be copied: {error}") from error
    with suppress(PermissionError):  # some disks have no modes
        part.chmod(0o600)
    part.replace(target)


def copy_database(url: URL, folder: Path) -> Path:
    """Copy the database into the folder, and return the file. Raises StartError."""
    if url.get_backend_name() == "sqlite":
        target = folder / SQLITE_NAME
        copy_sqlite(Path(url.database or ""), target)
        return target
    target = folder / POSTGRESQL_NAME
    _run("pg_dump", url, "--format=custom", f"--file={target}")
    return target


def check_kind(url: URL, copy: Path) -> None:
    """Check that the copy can be put into the database: PostgreSQL takes SQLite's, too. Raises StartError."""
    if copy.name == POSTGRESQL_NAME and url.get_backend_name() == "sqlite":
        raise StartError("The backup has a postgresql database, and DARKROOM_DATABASE names another kind.")


def check_copy(copy: Path) -> None:
    """Check that a copy can be read whole. Raises StartError."""
    if copy.name == POSTGRESQL_NAME:
        _call(("pg_restore", "--file=/dev/null", str(copy)), None)
        return
    try:
        with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as reader:
            found = reader.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        found = error
    if found != "ok":
        raise StartError(f"The backup's database is damaged: {found}.")


def restore_database(url: URL, copy: Path, tables: Collection[str]) -> None:
    """Put a copy in place of the database, which nobody may use. Of PostgreSQL these tables are replaced, also those
    that the copy, of an older version, does not have. Raises StartError, without a change then.

    What is restored does not own a storage: the one that it was copied from may live."""
    if copy.name == POSTGRESQL_NAME:
        _restore_postgresql(url, copy, tables)
        return
    with (
        closing(sqlite3.connect(copy)) as connection,
        suppress(sqlite3.OperationalError),
        connection,
    ):  # older: no table
        connection.execute(DISOWN)
    path = Path(url.database or "")
    for leftover in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        leftover.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    copy_sqlite(copy, path)


def _restore_postgresql(url: URL, copy: Path, tables: Collection[str]) -> None:
    """Restore by a script in one transaction: pg_restore alone leaves tables that are not in the copy, and fails where
    they refer to one that is."""
    drop = f"DROP TABLE IF EXISTS {', '.join(sorted(tables))} CASCADE"
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        script = Path(folder) / "restore.sql"
        command = ("pg_restore", "--clean", "--if-exists", "--no-owner", f"--file={script}", str(copy))
        _call(command, None)
        once = ("--no-psqlrc", "--set=ON_ERROR_STOP=1", "--single-transaction")
        _run("psql", url, *once, "-c", drop, "-f", str(script), "-c", DISOWN_IF_THERE)


def _run(program: str, url: URL, *options: str) -> None:
    """Run a program of PostgreSQL's. The password goes by the environment: every user of the machine sees command
    lines."""
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = {**os.environ, "PGPASSWORD": str(url.password)} if url.password else None
    _call((program, f"--dbname={address}", *options), environment)


def _call(command: tuple[str, ...], environment: dict[str, str] | None) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    except FileNotFoundError as error:
        raise StartError(f"{command[0]} is not there: install PostgreSQL's client programs.") from error
    except subprocess.CalledProcessError as error:
        raise StartError(f"{command[0]} failed: {error.stderr.strip()}") from error
