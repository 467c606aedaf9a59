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


class Cluster:
    """A temporary PostgreSQL server, which a test may stop and start."""

    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self._binaries = binaries
        self._folder = folder
        self._user = user
        self._numbers = itertools.count()

    def create(self) -> None:
        self._run("initdb", "--auth=trust", "--username=darkroom", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-F -c listen_addresses='' -k {self._folder}"
        self._run("pg_ctl", "--wait", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "-m", "immediate", "stop")

    def new(self, template: str = "test_0") -> str:
        """The URL of a new database."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(f"host={self._folder} user=darkroom dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return f"postgresql+psycopg://darkroom@/{name}?host={self._folder}"

    def _run(self, program: str, *options: str) -> None:
        command = [self._binaries / program, "-D", self._folder / "data", *options]
        subprocess.run(command, check=True, user=self._user, cwd=self._folder, stdout=subprocess.DEVNULL, timeout=120)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    pg_ctl = shutil.which("pg_ctl")
    if pg_ctl is None:
        pytest.skip("PostgreSQL is not installed")
    binaries = Path(pg_ctl).resolve().parent
    user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
    if user:
        shutil.chown(folder, user)

    cluster = Cluster(binaries, folder, user)
    cluster.create()
    try:
        migrated = Database(cluster.new("template0"))
        migrated.migrate()
        migrated.dispose()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgresql(cluster: Cluster) -> NewDatabase:
    """Creates empty databases with the current schema."""
    return cluster.new


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
