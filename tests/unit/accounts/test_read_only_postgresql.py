"""PostgreSQL takes no writes, as after a failover: calls are told to come again, a drawn image waits for its charge,
and the connection moves on to the server that takes them."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from server.accounts import db, report
from server.accounts.db import Database
from server.accounts.keys import authenticate, create_key
from server.accounts.ledger import Ledger
from server.errors import DatabaseBusy, DatabaseFailed
from tests.support.postgresql import Cluster
from tests.unit.accounts.conftest import NewDatabase
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result


@pytest.fixture
def url(postgresql: NewDatabase) -> str:
    return postgresql()


@pytest.fixture(autouse=True)
def request_limit_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one, so that the tests are short."""
    monkeypatch.setattr(db, "REQUEST_LIMIT_S", 1.0)
    monkeypatch.setattr(db, "ATTEMPT_S", 0.05)


async def test_a_call_is_refused_and_a_drawn_image_is_charged_once_when_it_is_writable_again(
    database: Database, cluster: Cluster
) -> None:
    key, secret = create_key(database, "a", GROUPS, budget=3000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    with cluster.read_only():
        with pytest.raises(DatabaseBusy) as refused:
            await ledger.in_writer(ledger.hold, call("c2", key.id))
        assert (refused.value.status, refused.value.code, refused.value.began) == (503, "database_busy", False)
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert "read-only" in refused.value.reason
        assert database.is_read_only
        capturing = asyncio.create_task(ledger.retry_in_writer(capture, ledger, "c1", [result("r1")], price=1000))
        assert await database.in_reader(authenticate, database, secret) == key
        await asyncio.sleep(0.3)  # some attempts, none of which reaches the work
        assert not capturing.done()
        assert report.entries(database) == []
    await capturing
    assert not database.is_read_only
    await ledger.in_writer(ledger.hold, call("c3", key.id))
    assert (len(report.entries(database)), report.balances(database)[0].held_units) == (1, 1000)
    assert clean(database)


async def test_a_capture_that_becomes_read_only_is_repeated_on_another_connection(database: Database) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    backends: list[int] = []

    def demote(session: Session) -> None:
        backends.append(session.scalars(text("SELECT pg_backend_pid()")).one())
        if len(backends) == 1:
            session.execute(text("SET TRANSACTION READ ONLY"))
        session.execute(text("UPDATE keys SET note = 'captured'"))

    await ledger.retry_in_writer(capture, ledger, "c1", [result("r1")], demote, price=1000)
    assert len(set(backends)) == 2
    assert len(report.entries(database)) == 1
    assert clean(database)


@pytest.mark.parametrize(
    ("state", "error", "undone"),
    [
        *((state, DatabaseBusy, True) for state in ("25006", "40001", "40P01", "53200", "53300", "55P03", "57014")),
        *((state, DatabaseBusy, False) for state in ("08006", "57P01", "57P02", "57P03", "25P03")),
        ("53100", DatabaseFailed, True),
        *((state, DatabaseFailed, False) for state in ("58030", "XX001")),
        *((state, DBAPIError, None) for state in ("42P01", "23505", "22003", "42501", "P0001")),
    ],
)
def test_an_error_is_sorted_by_its_code(
    database: Database, state: str, error: type[Exception], undone: bool | None
) -> None:
    fail = f"DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(error) as raised, database.write() as session:
        session.execute(text(fail))
    assert type(raised.value) is error or (error is DBAPIError and isinstance(raised.value, DBAPIError))
    assert getattr(raised.value, "undone", None) is undone
    create_key(database, "a", GROUPS)


def is_standby(database: Database) -> bool:
    with database.read() as session:
        return bool(session.scalars(text("SELECT pg_is_in_recovery()")).one())


@pytest.fixture(scope="module")
def standby(cluster: Cluster) -> Iterator[Cluster]:
    with Cluster.standby(cluster) as standby:
        yield standby


@pytest.mark.nightly
@pytest.mark.slow
async def test_writes_and_reads_follow_a_failover(database: Database, cluster: Cluster, standby: Cluster) -> None:
    """To the host of several that takes writes, though connections to the first one still work."""
    name = database.url.database
    both = f"postgresql+psycopg://darkroom@/{name}?host={cluster.folder},{standby.folder}"
    moving = Database(f"{both}&target_session_attrs=read-write")
    key, secret = create_key(moving, "a", GROUPS)
    ledger = Ledger(moving, "me")
    ledger.hold(call("c1", key.id))
    assert await moving.in_reader(authenticate, moving, secret) == key
    with cluster.read_only():
        with pytest.raises(DatabaseBusy):
            await ledger.in_writer(ledger.hold, call("c2", key.id))
        capturing = asyncio.create_task(ledger.retry_in_writer(capture, ledger, "c1", [result("r1")], price=1000))
        assert await moving.in_reader(authenticate, moving, secret) == key
        fresh = Database(moving.url)  # without a connection of before
        assert await fresh.in_reader(authenticate, fresh, secret) == key
        with pytest.raises(DatabaseBusy):
            await fresh.in_writer(Ledger(fresh, "other").hold, call("c3", key.id))
        assert fresh.is_read_only
        standby.promote()
        assert await fresh.in_reader(is_standby, fresh) is False
        fresh.dispose()
        await capturing
        assert len(report.entries(moving)) == 1
        assert clean(moving)
        assert report.entries(database) == []
    moving.dispose()
