"""Which nodes of a Ray cluster are used outlives its supervisor."""

from server.accounts.cluster_nodes import ClusterNodeStore
from server.accounts.db import Database


def test_what_is_admitted_and_drained_is_read_again(database: Database) -> None:
    store = ClusterNodeStore(database)
    store.admit(["a", "b"])
    store.drain(["b"])
    known = ClusterNodeStore(database).read()
    assert (known.admitted, known.drained) == ({"a", "b"}, {"b"})


def test_nodes_that_have_ended_are_forgotten(database: Database) -> None:
    store = ClusterNodeStore(database)
    store.admit(["a", "b"])
    store.keep(["b", "c"])
    assert store.read().admitted == {"b"}
    store.keep([])
    assert not store.read().admitted
