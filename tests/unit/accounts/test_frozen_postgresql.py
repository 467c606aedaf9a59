"""PostgreSQL answers nothing, or has no connection left: no call waits for ever, and the writer has its connection."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from server.accounts import db
from server.accounts.db import READERS, Database
from server.accounts.keys import authenticate, create_key, list_keys
from server.errors import DatabaseBusy
from tests.support.postgresql import Cluster
from tests.unit.accounts.helpers import GROUPS

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones, so that the tests are short."""
    monkeypatch.setattr(db, "REQUEST_LIMIT_S", 1.0)
    monkeypatch.setattr(db, "ATTEMPT_S", 0.05)
    monkeypatch.setattr(db, "CONNECT_LIMITS", {"connect_timeout": 2})
    monkeypatch.setattr(db, "ANSWER_LIMIT_S", 0.5)


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A server whose processes this test alone uses."""
    with Cluster.temporary() as cluster:
        yield cluster


async def test_what_a_frozen_server_holds_is_given_up(own_cluster: Cluster) -> None:
    database = Database(own_cluster.new("template0"))
    database.migrate()
    key, secret = create_key(database, "a", GROUPS)
    assert await database.in_reader(authenticate, database, secret) == key

    def note() -> None:
        with database.write() as session:
            session.execute(text("UPDATE keys SET note = 'x'"))

    with own_cluster.frozen():
        calls = [database.in_reader(list_keys, database) for _ in range(2)]
        ended = await asyncio.gather(*calls, database.in_writer(note), return_exceptions=True)
    assert [type(each) for each in ended] == [DatabaseBusy] * 3
    assert await database.in_reader(authenticate, database, secret) == key
    await database.in_writer(note)
    database.dispose()


def test_readers_leave_the_writer_its_connection(own_cluster: Cluster) -> None:
    url = own_cluster.new("template0")
    whole = Database(url)
    whole.migrate()
    with own_cluster.connect(str(whole.url.database)) as connection:
        connection.execute("CREATE ROLE small LOGIN CONNECTION LIMIT 3")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO small")
    small = Database(whole.url.set(username="small"))
    begun = threading.Barrier(4)

    def read() -> None:
        with small.read() as session:
            session.execute(text("SELECT 1"))
            begun.wait()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    begun.wait()
    for reader in readers:
        reader.join()
    assert len(readers) <= READERS
    with small.write() as session:  # though the pool of the readers has kept all three
        session.execute(text("UPDATE keys SET note = 'x'"))
    small.dispose()
    whole.dispose()
