"""The common part of stores: blocking methods, which an event loop runs in the database's threads."""

from collections.abc import Callable
from typing import Any, cast

from sqlalchemy import CursorResult, Delete, Update
from sqlalchemy.orm import Session

from server.accounts.db import Database

Write = Callable[[Session], None]  # runs inside another store's transaction


class Store:
    """Reads and writes one kind of record, for one server process (`owner`; none for a reader). All its methods block,
    but for the coroutines `in_reader`, `in_writer` and `retry_in_writer`, which are the database's."""

    def __init__(self, database: Database, owner: str = "") -> None:
        self._database = database
        self._owner = owner
        self.in_reader = database.in_reader
        self.in_writer = database.in_writer
        self.retry_in_writer = database.retry_in_writer

    def now(self) -> float:
        """Return Unix seconds by the clock that all servers of the database share."""
        return self._database.clock.now()

    def _write(self, statement: Update | Delete) -> int:
        """Run one statement in a transaction of its own, and return how many rows it has changed."""
        with self._database.write() as session:
            unseen = statement.execution_options(synchronize_session=False)  # nothing else is in the session
            return cast(CursorResult[Any], session.execute(unseen)).rowcount
