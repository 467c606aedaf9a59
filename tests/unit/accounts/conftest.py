"""A migrated database for each test: a SQLite file, and a PostgreSQL database."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.accounts.db import Database
from tests.support.migrated import copy_migrated
from tests.support.postgresql import Cluster

NewDatabase = Callable[[], str]
BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]  # a cluster takes seconds to start


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster.temporary() as cluster:
        migrated = Database(cluster.new("template0"))
        migrated.migrate()
        migrated.dispose()
        yield cluster


@pytest.fixture(scope="session")
def postgresql(cluster: Cluster) -> NewDatabase:
    """Creates empty databases with the current schema."""
    return cluster.new


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        copy_migrated(tmp_path / "darkroom.db")
        return f"sqlite:///{tmp_path / 'darkroom.db'}"
    new_database: NewDatabase = request.getfixturevalue("postgresql")
    return new_database()


@pytest.fixture(params=BOTH)
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
