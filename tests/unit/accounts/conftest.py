"""A migrated database for each test: a SQLite file, and a PostgreSQL database where that is installed."""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from server.accounts.db import Database

NewDatabase = Callable[[], str]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[NewDatabase]:
    """Creates empty databases with the current schema, in a temporary cluster."""
    pg_ctl = shutil.which("pg_ctl")
    if pg_ctl is None:
        pytest.skip("PostgreSQL is not installed")
    binaries = Path(pg_ctl).resolve().parent
    user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
    if user:
        shutil.chown(folder, user)

    def run(program: str, *options: str) -> None:
        command = [binaries / program, "-D", folder / "data", *options]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=120)

    run("initdb", "--auth=trust", "--username=darkroom", "--no-sync")
    run("pg_ctl", "--wait", "-l", str(folder / "log"), "-o", f"-F -c listen_addresses='' -k {folder}", "start")
    numbers = itertools.count()

    def new(template: str = "test_0") -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(f"host={folder} user=darkroom dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return f"postgresql+psycopg://darkroom@/{name}?host={folder}"

    try:
        migrated = Database(new("template0"))
        migrated.migrate()
        migrated.dispose()
        yield new
    finally:
        run("pg_ctl", "--wait", "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'darkroom.db'}"
    new_database: NewDatabase = request.getfixturevalue("postgresql")
    return new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    new_database: Callable[[str], str] = request.getfixturevalue("postgresql")
    return new_database("template0")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    database.migrate()
    yield database
    database.dispose()
