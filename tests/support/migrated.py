"""A SQLite file with the current schema, which is migrated once for all tests and copied for each."""

import shutil
from pathlib import Path

from server.accounts.copies import copy_sqlite
from server.accounts.db import Database
from tests.support.shared import make_once, shared_folder

FILE = "darkroom.db"


def copy_migrated(path: Path) -> None:
    """Put it where there is no database yet. Outside of a test run, as in a benchmark, nothing is there to copy."""
    if shared_folder() is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(make_once("migrated", _migrate) / FILE, path)


def _migrate(folder: Path) -> None:
    database = Database(f"sqlite:///{folder / 'first.db'}")
    database.migrate()
    database.dispose()
    copy_sqlite(folder / "first.db", folder / FILE)
