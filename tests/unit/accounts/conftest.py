"""A real, migrated SQLite file for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.accounts.db import Database


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'darkroom.db'}"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    database.migrate()
    yield database
    database.dispose()
