"""Versions of the catalog that several servers share, and whose turn it is to make one."""

from pathlib import Path

import pytest

from pipelines.checkpoints.folder.sums import CHUNK_BYTES, Digests
from server.accounts.catalogs import CatalogContent, CatalogStore, ChangeLockLost
from server.accounts.db import Database
from tests.unit.accounts.conftest import BOTH
from tests.unit.accounts.helpers import server

ON_POSTGRESQL = pytest.mark.parametrize("url", BOTH[1:], indirect=True)
FIRST = CatalogContent({"a.toml": "one"}, {"tiny": "0"})
SECOND = CatalogContent({"a.toml": "two"}, {"tiny": "0"})


def stores(database: Database) -> list[CatalogStore]:
    for owner in ("here", "there"):
        server(database, owner, f"http://{owner}:1")
    return [CatalogStore(database, owner) for owner in ("here", "there")]


@ON_POSTGRESQL
def test_the_first_server_makes_the_first_version(database: Database) -> None:
    here, there = stores(database)
    assert (here.current(), here.current_number()) == (None, 0)
    assert here.begin(FIRST).version == there.begin(SECOND).version == 1
    found = there.current()
    assert found is not None
    assert found.content == FIRST
    assert there.known_files() == {("a.toml", "one")}


@ON_POSTGRESQL
def test_one_server_at_a_time_makes_a_change(database: Database) -> None:
    here, there = stores(database)
    here.begin(FIRST)
    assert [here.acquire_change_lock("c1"), there.acquire_change_lock("c2")] == [True, False]
    assert [there.is_in_progress("c1"), there.is_in_progress("c2")] == [True, False]
    here.commit(2, SECOND, "c1")
    here.commit(2, SECOND, "c1")  # its answer was lost
    here.release_change_lock()
    assert (there.current_number(), there.is_in_progress("c1"), there.acquire_change_lock("c2")) == (2, False, True)


@ON_POSTGRESQL
def test_a_change_of_a_server_that_was_given_up_is_not_recorded(database: Database) -> None:
    here, there = stores(database)
    here.begin(FIRST)
    assert here.acquire_change_lock("c1")
    server(database, "here-again", "http://here:1")
    assert not there.is_in_progress("c1")
    with pytest.raises(ChangeLockLost):
        here.commit(2, SECOND, "c1")
    assert there.acquire_change_lock("c2")
    with pytest.raises(ChangeLockLost):
        there.commit(1, SECOND, "c2")
    assert there.current_number() == 1


def test_what_is_read_is_told_and_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    folder, memory, told = tmp_path / "tiny", tmp_path / "sums.json", list[int]()
    folder.mkdir()
    for name, size in (("one", 3), ("two", CHUNK_BYTES + 1)):
        (folder / name).write_bytes(b"0" * size)
    assert Digests(memory).unread_bytes(folder) == CHUNK_BYTES + 4
    Digests(memory).of(folder, told.append)
    assert told == [3, CHUNK_BYTES, 1]
    assert Digests(memory).unread_bytes(folder) == 0
    (folder / "one").write_bytes(b"1111")
    Digests(memory).of(folder, told.append)
    assert told[3:] == [4]


def test_a_checkpoint_has_another_sum_once_any_of_its_files_changes(tmp_path: Path) -> None:
    folder, digests = tmp_path / "tiny", Digests(tmp_path / "sums.json")
    (folder / "unet").mkdir(parents=True)
    (folder / "unet" / "config.json").write_text("{}")
    one = digests.of(folder)
    assert Digests(tmp_path / "sums.json").of(folder) == one
    (folder / "unet" / "config.json").write_text("[]")
    two = digests.of(folder)
    (folder / "unet" / "more.json").write_text("[]")
    assert len({one, two, digests.of(folder)}) == 3
