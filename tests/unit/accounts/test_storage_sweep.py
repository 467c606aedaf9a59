"""What is removed from a storage, and by whom: every way in which a database that is not the storage's comes upon it.

Each drill counts the files before and after, on a folder that servers share and on an S3 server.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.accounts import results
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import Ledger
from server.accounts.results import ResultStore
from server.accounts.stored_files import StoredFiles
from server.backends.object_storage import open_storage
from server.backends.storage import MARK, Storage
from server.flows.storage import sweep
from server.flows.storage.sweep import StorageSweep
from server.settings import Settings
from tests.support.migrated import copy_migrated
from tests.support.object_store import ObjectStore, object_store
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result

Deployment = Callable[..., "House"]


class House:
    """A database, and a server's view of the storage of its settings. `start` is a server's start."""

    def __init__(self, path: Path, location: str, **settings: object) -> None:
        if not path.exists():
            copy_migrated(path)
        self.path = path
        self.database = Database(f"sqlite:///{path}")
        self.settings = Settings(storage=location, home=path.parent, result_grace_s=0.001, **settings)
        self.storage = open_storage(location)
        self.files = StoredFiles(self.database)
        self.start()

    def start(self) -> "House":
        self.sweep = StorageSweep(self.settings, self.files, ResultStore(self.database), self.storage)
        self.sweep.claim()
        return self

    def draw(self, n: int = 1) -> list[str]:
        """Draw and charge images, as the image flow does."""
        key, _ = create_key(self.database, "a", GROUPS)
        ledger, names = Ledger(self.database, "me"), self.files.name_new("png", n)
        for name in names:
            self.storage.write(name, name.encode())
            ledger.hold(call(name[:32], key.id))
            capture(ledger, name[:32], [replace(result("r"), name=name)])
        return names

    def leave_behind(self) -> str:
        """Write a file without a record, as a server that is killed does."""
        (name,) = self.files.name_new("png")
        self.storage.write(name, b"lost")
        return name

    def run_for_days(self) -> None:
        """Let maintenance come again and again."""
        for _ in range(6):
            self.sweep.run()

    def copy_of(self, path: Path) -> Path:
        """Copy the database, as a snapshot of its disk does."""
        with self.database.write() as session:
            session.connection().exec_driver_sql("SELECT 1")
            shutil.copy(self.path, path)
            for ending in ("-wal", "-shm"):
                if Path(f"{self.path}{ending}").exists():
                    shutil.copy(f"{self.path}{ending}", f"{path}{ending}")
        return path


def names_in(storage: Storage, *, trashed: bool = False) -> set[str]:
    return {name for page in storage.names(trashed=trashed) for name in page}


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "shared")
    store: ObjectStore = request.getfixturevalue("s3")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"{store.url}/{tmp_path.name}"


@pytest.fixture
def house(tmp_path: Path, location: str) -> Iterator[Deployment]:
    made: list[House] = []

    def make(name: str = "production", **settings: object) -> House:
        made.append(House(tmp_path / f"{name}.db", location, **settings))
        return made[-1]

    yield make
    for each in made:
        each.database.dispose()


def test_a_server_sweeps_what_it_has_left_itself_and_puts_it_back(house: Deployment) -> None:
    production = house()
    kept, lost = production.draw(2), production.leave_behind()
    production.sweep.run()
    assert names_in(production.storage) == {*kept, lost}, "not at the first look"
    production.run_for_days()
    assert production.sweep.problem is None
    assert (names_in(production.storage), names_in(production.storage, trashed=True)) == (set(kept), {lost})
    assert production.sweep.put_back([lost]) == (1, 0)
    production.run_for_days()
    assert names_in(production.storage) == {*kept, lost}
    assert clean(production.database)


def other_database(production: House, house: Deployment) -> House:
    """A mistyped URL, or PostgreSQL in place of SQLite: it is empty."""
    return house("typo")


def other_deployment(production: House, house: Deployment) -> House:
    """A second server on the same prefix, which draws, too."""
    second = house("second")
    second.draw(2)
    return second


def yesterdays_database(production: House, house: Deployment) -> House:
    """A database put back from yesterday, in place of production's."""
    return house("yesterday")


@pytest.mark.parametrize("comes", [other_database, other_deployment, yesterdays_database])
@pytest.mark.parametrize("keep_days", [None, 1e-9])
def test_nothing_is_lost_or_moved_when_another_database_comes(
    house: Deployment,
    comes: Callable[[House, Deployment], House],
    keep_days: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the other one lets images expire at once."""
    production = house()
    production.draw(3)
    production.copy_of(tmp_path / "yesterday.db")
    production.start()
    production.draw(2)
    before = names_in(production.storage)
    other = comes(production, house)
    other.settings.results_keep_days = keep_days
    other.start()
    mine = names_in(other.storage)
    assert before <= mine
    assert other.sweep.problem is not None
    assert "darkroom store adopt" in other.sweep.problem
    other.run_for_days()
    assert other.sweep.run_for_operator(with_unknown=True) is None
    assert (names_in(other.storage), names_in(other.storage, trashed=True)) == (mine, set())


def test_a_copy_beside_production_stops_both_and_nothing_is_lost(house: Deployment, tmp_path: Path) -> None:
    """Staging made of a dump: whichever of the two comes to its maintenance first."""
    production = house()
    production.draw(3)
    staging_path = production.copy_of(tmp_path / "staging.db")
    staging = house("staging", results_keep_days=1e-9)
    assert staging.path == staging_path
    assert staging.sweep.problem is None, "nobody can know yet"
    staging.sweep.run()
    production.run_for_days()
    staging.run_for_days()
    production.run_for_days()
    assert len(names_in(production.storage)) == 3
    for each in (production, staging):
        assert each.sweep.problem is not None
        assert "another copy of this database" in each.sweep.problem
    production.sweep.adopt()
    production.run_for_days()
    staging.start().run_for_days()
    assert production.sweep.problem is None
    assert "belongs to another database" in str(staging.sweep.problem)
    assert len(names_in(production.storage)) == 3


def test_a_database_that_takes_over_knows_its_own_files_only(house: Deployment, tmp_path: Path) -> None:
    """After `darkroom store adopt`: what was drawn since the copy stays, and is named."""
    production = house()
    old = production.draw(2)
    production.copy_of(tmp_path / "restored.db")
    production.start()
    new = production.draw(3)
    restored = house("restored")
    restored.sweep.adopt()
    restored.start().run_for_days()
    assert restored.sweep.problem is None
    assert names_in(restored.storage) == {*old, *new}
    assert {name for page in restored.sweep.unknown() for name in page} == set(new)
    swept = restored.sweep.run_for_operator(with_unknown=True)
    assert (swept and swept.trashed, names_in(restored.storage)) == (3, set(old))
    assert restored.sweep.put_back(None) == (3, 0)
    assert names_in(restored.storage) == {*old, *new}


def test_a_home_of_an_older_version_is_adopted_by_its_images(house: Deployment) -> None:
    production = house()
    production.draw(3)
    production.files.set_owner(None)
    remove_mark(production)
    assert production.start().sweep.problem is None
    empty = house("empty")
    remove_mark(empty)
    assert "images that this database does not know" in str(empty.start().sweep.problem)
    missing = production.draw()
    production.storage.delete(missing)
    assert "images that this database does not know" in str(production.start().sweep.problem)


def test_an_empty_storage_is_not_that_of_a_database_with_images(house: Deployment, tmp_path: Path) -> None:
    """A disk that is not mounted: nothing is stamped there, so all is well when it is back."""
    production = house()
    production.draw(2)
    unmounted = StorageSweep(
        production.settings.model_copy(update={"storage": str(tmp_path / "mount-point")}),
        production.files,
        ResultStore(production.database),
        open_storage(str(tmp_path / "mount-point")),
    )
    assert not unmounted.claim()
    assert "Is its disk mounted" in str(unmounted.problem)
    assert not (tmp_path / "mount-point" / MARK).exists()
    assert production.start().sweep.problem is None


def test_an_image_that_its_owner_deletes_goes_at_once_from_an_own_storage_only(house: Deployment) -> None:
    production = house()
    first, second = production.draw(2)
    production.sweep.delete(first)
    assert names_in(production.storage) == {second}
    other = house("other")
    other.sweep.delete(second)
    assert names_in(production.storage) == {second}


def test_what_was_in_flight_when_a_database_was_copied_stays(house: Deployment, tmp_path: Path) -> None:
    production = house()
    in_flight = production.leave_behind()  # it is recorded a moment later
    production.copy_of(tmp_path / "restored.db")
    production.start()
    restored = house("restored")
    restored.sweep.adopt()
    restored.start().run_for_days()
    assert in_flight in names_in(restored.storage)


def remove_mark(house: House) -> None:
    if hasattr(house.storage, "_root"):
        (house.storage._root / MARK).unlink(missing_ok=True)
    else:
        house.storage._obstore.delete(house.storage._store, [MARK])


def test_images_expire_into_the_trash_come_back_as_they_were_and_go_after_days(house: Deployment) -> None:
    production = house(results_keep_days=1e-9)
    first, second = production.draw(2)
    store = ResultStore(production.database)
    key_id = store.find_file(first) and production.database and key_of(production.database, first)
    assert store.delete(second, str(key_id)), "by a person: it does not come back"
    production.run_for_days()
    assert store.find_file(first) is None
    assert production.sweep.put_back([first, second]) == (2, 1)
    assert store.find_file(first) is not None
    assert store.find_file(second) is None
    assert results.check(production.database, production.storage.exists) == []
    production.run_for_days()
    production.settings.trash_days = 1e-9
    production.start().run_for_days()
    assert (names_in(production.storage), names_in(production.storage, trashed=True)) == ({second}, set())
    with pytest.raises(FileNotFoundError):
        production.sweep.put_back([first])


def key_of(database: Database, name: str) -> str:
    with database.read() as session:
        return str(session.connection().exec_driver_sql(f"SELECT key_id FROM results WHERE name = '{name}'").scalar())


def test_a_file_that_is_recorded_while_it_is_swept_goes_back(house: Deployment) -> None:
    production = house()
    name = production.leave_behind()
    key, _ = create_key(production.database, "a", GROUPS)
    ledger, trash = Ledger(production.database, "me"), production.storage.trash

    def capture_meanwhile(names: list[str]) -> None:
        ledger.hold(call("late", key.id))
        capture(ledger, "late", [replace(result("r"), name=name)])
        trash(names)

    production.storage.trash = capture_meanwhile  # type: ignore[method-assign]
    production.run_for_days()
    assert (names_in(production.storage), names_in(production.storage, trashed=True)) == ({name}, set())
    assert results.check(production.database, production.storage.exists) == []


def test_a_small_share_goes_in_a_day_and_the_rest_by_an_operators_word(
    house: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "DAILY_FILES", 4)
    production = house(results_keep_days=1e-9)
    production.draw(10)
    production.run_for_days()
    assert len(names_in(production.storage)) == 6
    assert "`darkroom store sweep`" in str(production.sweep.problem)
    swept = production.sweep.run_for_operator(with_unknown=False)
    assert (swept and swept.trashed, names_in(production.storage), production.sweep.problem) == (6, set(), None)


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere")
def test_a_storage_that_takes_no_change_is_a_problem_and_loses_nothing(
    house: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only mount, a bucket without the right to delete."""
    production = house()
    production.draw()
    lost = production.leave_behind()
    warnings: list[str] = []
    monkeypatch.setattr(sweep, "log", SimpleNamespace(warning=warnings.append))

    def refuse(*_: object, **__: object) -> None:
        raise sweep.StorageFailed("Read-only file system")

    monkeypatch.setattr(production.storage, "trash", refuse)
    production.run_for_days()
    assert lost in names_in(production.storage)
    assert "does not let them go: Read-only file system" in str(production.sweep.problem)
    monkeypatch.setattr(production.storage, "write_mark", refuse)
    production.start().run_for_days()
    assert "can't be read or written: Read-only file system" in str(production.sweep.problem)
    assert len(warnings) == 2
    assert len(names_in(production.storage)) == 2


GOOD_MARK = {"id": "a" * 32, "stamp": "b" * 16, "host": "h", "home": "/h", "at": 1.0}


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"\xff{",
        b"[" * 60_000,
        b"{}",
        *(
            json.dumps({**GOOD_MARK, name: value}).encode()
            for name, value in [("at", "soon"), ("at", 1e300), ("at", None), ("stamp", None), ("stamp", ["y"]),
                                ("host", "\x1b[2J"), ("id", "x")]
        ),
    ],
)  # fmt: skip
def test_a_mark_that_no_server_wrote_is_a_problem_and_ends_nothing(house: Deployment, mark: bytes) -> None:
    production = house()
    production.storage.write_mark(mark)
    assert "is not one that a server wrote" in str(production.start().sweep.problem)


def test_a_pipe_or_a_folder_in_place_of_the_mark_is_a_problem(tmp_path: Path) -> None:
    production = House(tmp_path / "production.db", str(tmp_path / "shared"))
    remove_mark(production)
    os.mkfifo(tmp_path / "shared" / MARK)
    assert "is not one that a server wrote" in str(production.start().sweep.problem)
    remove_mark(production)
    (tmp_path / "shared" / MARK).mkdir()
    assert "can't be read or written" in str(production.start().sweep.problem)
    production.database.dispose()


def test_a_store_that_deletes_nothing_puts_everything_back(house: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    production = house(results_keep_days=1e-9)
    names = production.draw(3)
    production.run_for_days()
    if not hasattr(production.storage, "_delete"):
        pytest.skip("a folder's files are renamed")

    def refuse(_: object) -> None:
        raise sweep.StorageFailed("AccessDenied")

    monkeypatch.setattr(production.storage, "_delete", refuse)
    assert production.sweep.put_back(None) == (3, 3)
    assert names_in(production.storage) == set(names)
    assert results.check(production.database, production.storage.exists) == []


def test_a_command_that_is_killed_while_it_puts_back_is_repeated(
    house: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    production = house(results_keep_days=1e-9)
    (name,) = production.draw()
    production.run_for_days()
    with monkeypatch.context() as patch:
        patch.setattr(production.files, "mark_put_back", interrupt)
        with pytest.raises(KeyboardInterrupt):
            production.sweep.put_back([name])
    assert production.sweep.put_back([name]) == (1, 1)
    assert results.check(production.database, production.storage.exists) == []


def interrupt(_: object) -> int:
    raise KeyboardInterrupt


def test_a_start_that_is_killed_between_the_two_stamps_goes_on(
    house: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage has the new stamp, and the database has begun it; or the storage has the old one still."""
    production = house()
    kept = production.draw()
    set_owner, calls = production.files.set_owner, []

    def only_the_first(owner: object) -> None:
        calls.append(owner)
        if len(calls) == 1:
            set_owner(owner)  # type: ignore[arg-type]

    monkeypatch.setattr(production.files, "set_owner", only_the_first)
    production.sweep.claim()
    monkeypatch.undo()
    assert production.start().sweep.problem is None
    monkeypatch.setattr(production.storage, "write_mark", lambda _: None)
    production.sweep.claim()
    monkeypatch.undo()
    owner, mark = production.files.owner(), json.loads(production.storage.read_mark() or b"")
    assert owner is not None
    assert owner.id == mark["id"]
    assert names_in(production.storage) == set(kept)
