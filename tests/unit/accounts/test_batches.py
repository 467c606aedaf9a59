"""Requests for a batch that come to several servers at once, on a real database."""

import threading

import pytest
from sqlalchemy.exc import IntegrityError

from server.accounts.batches import Batch, BatchLine, BatchStore, Repeatable
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.response_tables import BatchRow
from tests.unit.accounts.helpers import GROUPS

FINGERPRINT = "2:" + 62 * "a"
LINE = BatchLine(0, "a", "/v1/chat/completions", "{}")


def make(key_id: str, name: str, now: float, idempotency_key: str | None) -> Batch:
    return Batch(
        name, key_id, None, None, "", {}, 1, now, now + 60, fingerprint=FINGERPRINT, idempotency_key=idempotency_key
    )


@pytest.mark.parametrize("idempotency_key", ["k", None])
def test_requests_at_several_servers_at_once_make_one_batch(url: str, idempotency_key: str | None) -> None:
    databases = [Database(url) for _ in range(4)]
    databases[0].migrate()
    key_id = create_key(databases[0], "a", GROUPS)[0].id
    made: list[Batch] = []
    barrier = threading.Barrier(len(databases))

    def create(number: int) -> None:
        store = BatchStore(databases[number], f"server {number}")
        batch = make(key_id, f"b{number}", store.now(), idempotency_key)
        barrier.wait(30)
        made.append(store.create(batch, [LINE], Repeatable(60, says_retry=True)))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(len(databases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(databases)
    assert len({batch.id for batch in made}) == 1
    for database in databases:
        database.dispose()


def test_no_two_batches_of_a_key_have_one_idempotency_key(database: Database) -> None:
    ids = [create_key(database, name, GROUPS)[0].id for name in ("a", "b")]
    store = BatchStore(database, "me")
    for name, key_id, idempotency_key in (("b1", ids[0], "k"), ("b2", ids[1], "k"), ("b3", ids[0], None)):
        store.create(make(key_id, name, store.now(), idempotency_key), [LINE])
    store.create(make(ids[0], "b4", store.now(), None), [LINE])
    with pytest.raises(IntegrityError), database.write() as session:
        session.get_one(BatchRow, "b3").idempotency_key = "k"


def test_an_answer_that_was_lost_is_given_to_one_request(database: Database) -> None:
    key_id = create_key(database, "a", GROUPS)[0].id
    store, earlier = BatchStore(database, "me"), Repeatable(60, says_retry=False)
    assert store.create(make(key_id, "b1", store.now(), None), [LINE], earlier).id == "b1"
    assert store.create(make(key_id, "b2", store.now(), None), [LINE], earlier).id == "b2"
    store.mark_lost("b1")
    assert [store.create(make(key_id, name, store.now(), None), [LINE], earlier).id for name in ("b3", "b4")] == [
        "b1",
        "b4",
    ]
