"""Copies of the database while others use it: SQLite's by its own backup, PostgreSQL's by pg_dump."""

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL

from server.errors import StartError

SQLITE_NAME, POSTGRESQL_NAME = "darkroom.db", "darkroom.dump"


def copy_sqlite(source: Path, target: Path) -> None:
    """A copy that is one moment's, whoever writes meanwhile. `target` is replaced."""
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    address = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as reader, closing(sqlite3.connect(part)) as copy:
        reader.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a WAL beside it
    part.chmod(0o600)
    part.replace(target)


def copy_database(url: URL, folder: Path) -> Path:
    """Into the folder; returns the file. Raises StartError."""
    if url.get_backend_name() == "sqlite":
        target = folder / SQLITE_NAME
        copy_sqlite(Path(url.database or ""), target)
        return target
    target = folder / POSTGRESQL_NAME
    _run("pg_dump", url, "--format=custom", f"--file={target}")
    return target


def restore_database(url: URL, copy: Path) -> None:
    """Put a copy in place of the database, which nobody may use. Raises StartError."""
    kind = "sqlite" if copy.name == SQLITE_NAME else "postgresql"
    if url.get_backend_name() != kind:
        raise StartError(f"The backup has a {kind} database, and DARKROOM_DATABASE names another kind.")
    if kind == "postgresql":
        _run("pg_restore", url, "--clean", "--if-exists", "--no-owner", "--single-transaction", str(copy))
        return
    path = Path(url.database or "")
    for leftover in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        leftover.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    copy_sqlite(copy, path)


def _run(program: str, url: URL, *options: str) -> None:
    """The password goes by the environment: every user of the machine sees command lines."""
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = {**os.environ, "PGPASSWORD": str(url.password)} if url.password else None
    command = (program, f"--dbname={address}", *options)
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    except FileNotFoundError as error:
        raise StartError(f"{program} is not there: install PostgreSQL's client programs.") from error
    except subprocess.CalledProcessError as error:
        raise StartError(f"{program} failed: {error.stderr.strip()}") from error
