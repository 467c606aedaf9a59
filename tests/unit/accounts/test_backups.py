"""Backups made while the database is written, put back; and the way back from an upgrade."""

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from server.accounts import report
from server.accounts.copies import copy_database, copy_sqlite, restore_database
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.accounts.keys import create_key, list_keys
from server.accounts.ledger import Ledger
from server.accounts.schema import _alembic, newest_schema, table_names
from server.accounts.stored_files import StorageOwner, StoredFiles
from server.backends.object_storage import open_storage
from server.backends.storage import MARK
from server.errors import StartError
from server.flows.operators import backup
from server.flows.operators.backup import check_backup, make_backup, restore_backup
from server.flows.operators.doctor import _database
from server.flows.storage.owner import StorageMarks
from server.settings import Settings
from tests.support.postgresql import Cluster
from tests.unit.accounts.conftest import NewDatabase
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result

LAST_OF_0_1_0 = "0007"
KEY = (
    "INSERT INTO keys (id, name, secret_hash, tail, groups, created_at) "
    "VALUES ('key_1', 'old', 'h', 'abcd', '[\"alpha\"]', 1.0)"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home with an image that is paid for, and a catalog."""
    home, configs = tmp_path / "home", tmp_path / "configs"
    (home / "results" / "aa").mkdir(parents=True)
    (home / "results" / "aa" / "a.png").write_bytes(b"picture")
    (home / "admin-key").write_text("admin-1")
    configs.mkdir()
    (configs / "alpha.toml").write_text("price = 1")
    return Settings(home=home, model_configs=configs, database=None)


@pytest.fixture
def books(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    database.migrate()
    key, _ = create_key(database, "shop", GROUPS)
    ledger = Ledger(database, "me")
    ledger.hold(call("c1", key.id))
    capture(ledger, "c1", [result("a")])
    yield database
    database.dispose()


def test_a_backup_brings_everything_back(settings: Settings, books: Database, tmp_path: Path) -> None:
    with books.write() as session:  # the server writes meanwhile: what is not committed is not in it
        session.execute(text("UPDATE keys SET name = 'changing'"))
        made = make_backup(settings, tmp_path / "backups")
        session.rollback()
    assert (made.images, made.schema, made.path.stat().st_mode & 0o777) == (1, newest_schema(), 0o600)
    create_key(books, "too late", GROUPS)
    (settings.home / "results" / "aa" / "a.png").write_bytes(b"damaged")
    (settings.model_configs / "alpha.toml").write_text("price = 2")
    books.dispose()
    restored = restore_backup(settings, made.path, keep_catalog=False)
    assert restored.images == 1
    after = Database(settings.database_url)
    assert [key.name for key in list_keys(after)] == ["shop"]
    assert [entry.call_id for entry in report.entries(after)] == ["c1"]
    after.dispose()
    assert (settings.home / "results" / "aa" / "a.png").read_bytes() == b"picture"
    assert (settings.home / "admin-key").read_text() == "admin-1"
    assert (settings.model_configs / "alpha.toml").read_text() == "price = 1"
    (aside,) = settings.home.glob("before-restore-*")
    assert (aside / "results" / "aa" / "a.png").read_bytes() == b"damaged"
    assert (aside / "configs" / "alpha.toml").read_text() == "price = 2"


@pytest.mark.parametrize("written", ["{}", "file://{}"])
def test_a_folder_of_images_elsewhere_is_in_it(
    settings: Settings, books: Database, tmp_path: Path, written: str
) -> None:
    folder = tmp_path / "pool" / "images"
    (settings.home / "results").rename(tmp_path / "moved")
    folder.parent.mkdir()
    (tmp_path / "moved").rename(folder)
    settings = settings.model_copy(update={"storage": written.format(folder)})
    made = make_backup(settings, tmp_path / "backups")
    assert made.images == 1
    (folder / "aa" / "a.png").write_bytes(b"damaged")
    books.dispose()
    restore_backup(settings, made.path, keep_catalog=False)
    assert (folder / "aa" / "a.png").read_bytes() == b"picture"
    (aside,) = settings.home.glob("before-restore-*")
    assert (aside / "results" / "aa" / "a.png").read_bytes() == b"damaged"


def test_images_in_an_object_store_are_named_as_left_out(settings: Settings, books: Database, tmp_path: Path) -> None:
    full = make_backup(settings, tmp_path / "full")
    settings = settings.model_copy(update={"storage": "s3://bucket/images"})
    made = make_backup(settings, tmp_path / "backups")
    assert made.images == 0
    assert ("s3://bucket/images" in str(made.left_out), "s3://" in str(full.left_out)) == (True, False)
    books.dispose()
    assert restore_backup(settings, made.path, keep_catalog=False).left_out == ()
    assert "s3://bucket/images" in str(restore_backup(settings, full.path, keep_catalog=False).left_out)


def test_files_that_are_links_are_in_it(settings: Settings, books: Database, tmp_path: Path) -> None:
    """As secrets and catalogs of containers are."""
    linked = [settings.home / "admin-key", settings.model_configs / "alpha.toml", settings.results / "aa" / "a.png"]
    for file in linked:
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    (settings.results / "aa" / "b.png").hardlink_to(tmp_path / "a.png")
    made = make_backup(settings.model_copy(update={"batch_folder": tmp_path / "lines"}), tmp_path / "backups")
    assert f"files of batches ({tmp_path / 'lines'})" in made.left_out
    assert check_backup(settings, made.path).images == 2
    elsewhere = Settings(home=tmp_path / "other", model_configs=tmp_path / "other-configs", database=None)
    restore_backup(elsewhere, made.path, keep_catalog=False)
    assert (elsewhere.results / "aa" / "b.png").read_bytes() == b"picture"
    assert elsewhere.admin_key.read_text() == "admin-1"
    assert [path for path in tmp_path.glob("other*/**/*") if path.is_symlink()] == []


def test_a_backup_is_proved_without_a_change(settings: Settings, books: Database, tmp_path: Path) -> None:
    made = make_backup(settings, tmp_path / "backups")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    checked = check_backup(settings, made.path)
    assert (checked.images, checked.schema) == (1, newest_schema())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    damaged = tmp_path / "damaged.tar"
    content = made.path.read_bytes()
    damaged.write_bytes(content.replace(b"picture", b"pictXre"))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(content[: len(content) // 2])
    other = tmp_path / "other.tar"
    other.write_text("no archive")
    for file, words in ((damaged, "is not as it was written"), (cut, "cut.tar"), (other, "no backup")):
        with pytest.raises(StartError, match=words):
            check_backup(settings, file)


def test_the_catalog_may_stay(settings: Settings, books: Database, tmp_path: Path) -> None:
    made = make_backup(settings, tmp_path / "backups")
    (settings.model_configs / "alpha.toml").write_text("price = 2")
    books.dispose()
    restore_backup(settings, made.path, keep_catalog=True)
    assert (settings.model_configs / "alpha.toml").read_text() == "price = 2"


def test_what_is_no_backup_changes_nothing(
    settings: Settings, books: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_backup(settings, tmp_path / "backups")
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(made.path.read_bytes().replace(b"picture", b"pictXre"))
    empty = tmp_path / "empty.tar"
    tarfile.open(empty, "w").close()
    text_file = tmp_path / "text.tar"
    text_file.write_text("no archive")
    books.dispose()
    for file in (empty, text_file):
        with pytest.raises(StartError, match=str(file)):
            restore_backup(settings, file, keep_catalog=False)
    with pytest.raises(StartError, match="damaged"):
        restore_backup(settings, damaged, keep_catalog=False)
    monkeypatch.setattr(backup, "is_newer", lambda _: True)
    with pytest.raises(StartError, match="newer than"):
        restore_backup(settings, made.path, keep_catalog=False)
    assert list(settings.home.glob("before-restore-*")) == []
    assert (settings.home / "results" / "aa" / "a.png").exists()


@pytest.fixture
def of_0_1_0(empty_url: str) -> Iterator[Database]:
    """A database with the schema of that version, and a key."""
    database = Database(empty_url)
    config = _alembic()
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, LAST_OF_0_1_0)
        session.execute(text(KEY))
    yield database
    database.dispose()


@pytest.fixture
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' server has its own pg_dump: that of another version may refuse it."""
    cluster: Cluster = request.getfixturevalue("cluster")
    monkeypatch.setenv("PATH", f"{cluster.binaries}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("programs")
def test_a_database_is_copied_and_put_back_on_either_kind(database: Database, tmp_path: Path) -> None:
    create_key(database, "shop", GROUPS)
    copy = copied(database, tmp_path)
    create_key(database, "too late", GROUPS)
    database.dispose()
    restore_database(database.url, copy, table_names())
    assert [key.name for key in list_keys(database)] == ["shop"]


@pytest.mark.usefixtures("programs")
def test_a_copy_of_version_0_1_0_takes_an_upgrade_back_on_either_kind(of_0_1_0: Database, tmp_path: Path) -> None:
    before = schema(of_0_1_0)
    copy = copied(of_0_1_0, tmp_path)
    of_0_1_0.migrate()
    create_key(of_0_1_0, "too late", GROUPS)
    of_0_1_0.dispose()
    restore_database(of_0_1_0.url, copy, table_names())
    assert of_0_1_0.schema_version() == LAST_OF_0_1_0
    assert schema(of_0_1_0) == before
    of_0_1_0.migrate()  # and forward again
    assert [key.name for key in list_keys(of_0_1_0)] == ["old"]


@pytest.mark.slow
def test_what_can_not_be_copied_is_a_plain_error_and_leaves_nothing(
    settings: Settings, books: Database, postgresql: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Settings(home=settings.home, model_configs=settings.model_configs, database=postgresql())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match="pg_dump is not there"):
        make_backup(elsewhere, tmp_path / "backups")
    finding = _database(elsewhere)
    assert finding.ok is None
    assert "pg_dump is not there" in finding.detail
    books.dispose()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"\xa5" * 65536)
    with pytest.raises(StartError, match="can't be copied: file is not a database"):
        copy_sqlite(damaged, tmp_path / "backups" / "copy.db")
    assert list((tmp_path / "backups").iterdir()) == []


@pytest.mark.usefixtures("programs")
@pytest.mark.slow
def test_a_backup_of_another_kind_changes_nothing(
    settings: Settings, books: Database, postgresql: NewDatabase, tmp_path: Path
) -> None:
    url = postgresql()
    elsewhere = Settings(home=settings.home, model_configs=settings.model_configs, database=url)
    made = make_backup(elsewhere, tmp_path / "backups")
    books.dispose()
    with pytest.raises(StartError, match="has a postgresql database"):
        restore_backup(settings, made.path, keep_catalog=False)
    assert [key.name for key in list_keys(books)] == ["shop"]
    assert (settings.home / "results" / "aa" / "a.png").exists()
    assert restore_backup(elsewhere, made.path, keep_catalog=False).images == 1


@pytest.mark.usefixtures("programs")
@pytest.mark.slow
def test_one_box_becomes_several_by_its_backup(
    settings: Settings, books: Database, postgresql: NewDatabase, tmp_path: Path
) -> None:
    """SQLite's rows come into PostgreSQL, whose own are copied first."""
    StoredFiles(books).set_owner(StorageOwner("of-sqlite", "1"))
    made = make_backup(settings, tmp_path / "backups")
    elsewhere = settings.model_copy(update={"database": postgresql()})
    there = Database(elsewhere.database_url)
    create_key(there, "was there", GROUPS)
    gateway = GatewayStore(there, "me", None, 60)
    gateway.register()
    with pytest.raises(StartError, match=r"1 server\(s\) use the database: stop them first"):
        restore_backup(elsewhere, made.path, keep_catalog=True)
    gateway.leave()
    restore_backup(elsewhere, made.path, keep_catalog=True)
    assert [key.name for key in list_keys(there)] == ["shop"]
    assert [entry.call_id for entry in report.entries(there)] == ["c1"]
    assert StoredFiles(there).owner() is None
    key = list_keys(there)[0]
    ledger = Ledger(there, "me")
    ledger.hold(call("c2", key.id))
    capture(ledger, "c2", [result("b")])
    assert sorted(entry.call_id for entry in report.entries(there)) == ["c1", "c2"]
    assert clean(there)
    (aside,) = settings.home.glob("before-restore-*")
    assert (aside / "darkroom.dump").stat().st_size > 0
    there.dispose()


@pytest.mark.parametrize("linked", [False, True], ids=["its own", "a link to another's"])
def test_a_restored_database_owns_the_storage_of_its_home_alone(
    settings: Settings, books: Database, tmp_path: Path, linked: bool
) -> None:
    """A home is copied with its link to the images: both have the mark's id and stamps."""
    StorageMarks(StoredFiles(books), open_storage(settings.images), settings).adopt()
    made = make_backup(settings, tmp_path / "backups")
    books.dispose()
    if linked:
        settings.results.rename(tmp_path / "disk")
        settings.results.symlink_to(tmp_path / "disk")
        shutil.copytree(settings.home, tmp_path / "copy", symlinks=True)
        settings = settings.model_copy(update={"home": tmp_path / "copy"})
    restored = restore_backup(settings, made.path, keep_catalog=True)
    assert (settings.results / MARK).exists()
    assert ("belongs to another database" in str(restored.storage_problem)) == linked


def test_a_restore_moves_no_image_of_the_storage(settings: Settings, books: Database, tmp_path: Path) -> None:
    """It may be the storage of a server that runs: the restore is a rehearsal."""
    made = make_backup(settings, tmp_path / "backups")
    newer = settings.results / "bb" / "b.png"
    newer.parent.mkdir()
    newer.write_bytes(b"newer")
    (settings.results / "aa" / "a.png").unlink()
    elsewhere = Settings(
        home=tmp_path / "other", model_configs=tmp_path / "configs-2", database=None, storage=str(settings.results)
    )
    restore_backup(elsewhere, made.path, keep_catalog=False)
    assert newer.read_bytes() == b"newer"
    assert (settings.results / "aa" / "a.png").read_bytes() == b"picture"
    books.dispose()


def test_a_table_that_this_version_has_is_replaced(database: Database) -> None:
    assert set(inspect(database._writer).get_table_names()) == table_names()


def copied(database: Database, folder: Path) -> Path:
    (folder / "copies").mkdir()
    return copy_database(database.url, folder / "copies")


def schema(database: Database) -> dict[str, list[str]]:
    """The columns of each table."""
    found = inspect(database._writer)
    columns = {table: [column["name"] for column in found.get_columns(table)] for table in found.get_table_names()}
    database.dispose()
    return columns


def test_an_upgrade_keeps_the_database_of_version_0_1_0_to_go_back_to(tmp_path: Path) -> None:
    path = tmp_path / "darkroom.db"
    old = Database(f"sqlite:///{path}")
    config = _alembic()
    with old.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, LAST_OF_0_1_0)
        session.execute(text(KEY))
    old.migrate()
    assert old.schema_version() == newest_schema() > LAST_OF_0_1_0
    create_key(old, "new", GROUPS)
    old.migrate()  # which has nothing to do, and keeps nothing
    old.dispose()
    kept = tmp_path / f"darkroom.db.schema-{LAST_OF_0_1_0}"
    assert [each.name for each in tmp_path.glob("*.schema-*")] == [kept.name]

    kept.replace(path)  # the way back (docs/guides/operating.md)
    for leftover in (path.with_name("darkroom.db-wal"), path.with_name("darkroom.db-shm")):
        leftover.unlink(missing_ok=True)
    back = Database(f"sqlite:///{path}")
    assert back.schema_version() == LAST_OF_0_1_0
    with back.read() as session:
        assert session.scalars(text("SELECT name FROM keys")).all() == ["old"]
        columns = session.execute(text("SELECT * FROM keys")).keys()
        assert "monthly_budget" not in columns
    back.dispose()
