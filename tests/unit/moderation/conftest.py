"""What the tests of moderation share."""

from pathlib import Path

import pytest

from server.accounts.db import Database
from tests.support.migrated import copy_migrated


@pytest.fixture
def database(tmp_path: Path) -> Database:
    copy_migrated(tmp_path / "darkroom.db")
    return Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
