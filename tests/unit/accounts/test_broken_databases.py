"""A database whose disk is full or whose file is damaged: a clear error, nothing charged, and it works again by itself
when it is mended."""

import asyncio
import contextlib
import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import event, text

from server.accounts import db
from server.accounts.db import Database
from server.accounts.keys import authenticate, create_key
from server.accounts.ledger import Ledger
from server.accounts.report import balances, entries
from server.cli.app import main
from server.errors import DatabaseFailed
from tests.support.polling import eventually
from tests.unit.accounts.helpers import GROUPS, Attempts, call, capture, clean, result


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'darkroom.db'}"


@contextlib.contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process can grow past it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def damaged(path: Path, page: int, page_bytes: int = 4096) -> Iterator[None]:
    """A page of the file is overwritten, until the backup is restored."""
    with path.open("r+b", buffering=0) as file:
        file.seek((page - 1) * page_bytes)
        sound = file.read(page_bytes)
        file.seek((page - 1) * page_bytes)
        file.write(b"\xa5" * page_bytes)
        yield
        file.seek((page - 1) * page_bytes)
        file.write(sound)


@contextlib.contextmanager
def full(database: Database) -> Iterator[None]:
    """No page can be added, as on a full disk: SQLite reports both alike."""
    with database.read() as session:
        pages = session.scalars(text("PRAGMA page_count")).one()

    has_room = threading.Event()

    def limit(connection: sqlite3.Connection, _: object) -> None:
        if not has_room.is_set():
            connection.execute(f"PRAGMA max_page_count = {pages}")

    database._writer.dispose()  # the limit is of a connection
    event.listen(database._writer, "connect", limit)  # for good: the writer's thread may be connecting at any moment
    yield
    has_room.set()


async def test_a_full_disk_refuses_a_call_at_once_and_what_would_be_lost_waits(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "ATTEMPT_S", 0.05)
    key, secret = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c0", key.id))
    results = [result(f"r{i}") for i in range(200)]  # more than what is left of any page
    with full(database):
        with pytest.raises(DatabaseFailed) as refused:
            await ledger.in_writer(capture, ledger, "c0", results)
        assert (refused.value.status, refused.value.code, refused.value.undone) == (503, "database_failed", True)
        attempts = Attempts(partial(capture, ledger, "c0", results))
        capturing = asyncio.create_task(ledger.retry_in_writer(attempts))
        assert await database.in_reader(authenticate, database, secret) == key
        await eventually(lambda: attempts.count > 2)
        assert not capturing.done()
        assert entries(database) == []
    await capturing
    assert len(entries(database)) == 1
    assert clean(database)


def test_a_file_that_cannot_grow_refuses_calls_until_it_can(database: Database, tmp_path: Path) -> None:
    key, _ = create_key(database, "a", GROUPS)
    ledger = Ledger(database, "me")
    log_bytes = (tmp_path / "darkroom.db-wal").stat().st_size
    with file_size_limit(log_bytes), pytest.raises(DatabaseFailed) as refused:
        ledger.hold(call("c1", key.id))
    assert "I/O error" in refused.value.reason
    assert balances(database)[0].held_units == 0
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("r1")])
    assert clean(database)


def page_of(database: Database, table: str) -> int:
    with database.read() as session:
        return int(session.scalars(text(f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")).one())


def test_a_damaged_page_fails_what_needs_it_and_nothing_is_charged(database: Database, tmp_path: Path) -> None:
    key, secret = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    holds = page_of(database, "holds")
    database.dispose()  # its log is written back, and nothing is in memory
    with damaged(tmp_path / "darkroom.db", holds):
        for _ in range(2):
            with pytest.raises(DatabaseFailed, match="damaged"):
                ledger.hold(call("c1", key.id))
        assert authenticate(database, secret) == key  # of another page
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("r1")])
    assert clean(database)


def test_keys_that_cannot_be_read_are_not_taken_for_wrong_ones(database: Database, tmp_path: Path) -> None:
    key, secret = create_key(database, "a", GROUPS)
    keys = page_of(database, "keys")
    database.dispose()
    with damaged(tmp_path / "darkroom.db", keys), pytest.raises(DatabaseFailed):
        authenticate(database, secret)
    assert authenticate(database, secret) == key


def test_a_command_says_that_the_database_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "darkroom.db").write_bytes(b"no database at all" * 1000)
    monkeypatch.setenv("DARKROOM_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["darkroom", "keys", "list"])
    began = time.monotonic()
    with pytest.raises(SystemExit):
        main()
    assert time.monotonic() - began < db.COMMAND_LIMIT_S  # no waiting for what can't pass
    assert "file is not a database" in capsys.readouterr().err
