"""What the tests of moderation share."""

from pathlib import Path

import pytest

from server.accounts.db import Database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    return database
