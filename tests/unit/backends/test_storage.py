"""Stored files are complete or absent, in a folder and in an object store."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.backends.local_storage import LocalStorage
from server.backends.open_storage import open_storage
from server.backends.storage import Storage
from server.errors import ImageMissing, StartError, StorageFailed
from tests.support.object_store import ObjectStore, object_store

RECORDED = f"{'a' * 32}.png"  # of a live record, and not stored


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "results"), lambda name: name == RECORDED)
    store: ObjectStore = request.getfixturevalue("s3")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return open_storage(f"{store.url}/{tmp_path.name}", lambda name: name == RECORDED)


def test_what_is_written_is_read(storage: LocalStorage) -> None:
    name = storage.new_name("png")
    storage.write(name, b"pixels")
    assert storage.read(name) == b"pixels"
    assert storage.exists(name)


def test_a_part_of_a_file_is_read(storage: Storage) -> None:
    name = storage.new_name("png")
    storage.write(name, b"0123456789")
    assert storage.read_range(name, 2, 5) == b"234"


def test_a_lost_file_is_told_from_a_deleted_one(storage: Storage) -> None:
    deleted = storage.new_name("png")
    storage.write(deleted, b"1")
    storage.delete([deleted])
    for use in (storage.read, storage.require, lambda name: storage.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            use(deleted)
        with pytest.raises(ImageMissing):
            use(RECORDED)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "", ".", "a.png", "0" * 32, f"{'0' * 31}/.png", f"{'G' * 32}.png"]
)
def test_invalid_names_have_no_file(storage: Storage, name: str) -> None:
    assert not storage.exists(name)
    assert storage.path(name) is None
    with pytest.raises(FileNotFoundError):
        storage.read(name)


def test_old_files_are_found_and_deleted(storage: Storage) -> None:
    known, unknown = storage.new_name("png"), storage.new_name("png")
    storage.write(known, b"1")
    storage.write(unknown, b"2")
    assert [name for page in storage.pages(older_than_s=3600) for name in page] == []
    assert {name for page in storage.pages(older_than_s=-3600) for name in page} == {known, unknown}
    storage.delete([unknown, storage.new_name("png")])
    assert storage.exists(known)
    assert not storage.exists(unknown)


def test_what_a_crash_left_of_a_file_is_found_and_deleted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    name = storage.new_name("png")
    storage.write(name, b"1")
    partial = tmp_path / name[:2] / f".{name}.tmp"
    partial.write_bytes(b"partial")
    assert {found for page in storage.pages(older_than_s=-1) for found in page} == {name, partial.name}
    storage.delete([partial.name])
    assert not partial.exists()
    assert storage.exists(name)


def test_a_store_that_is_away_is_storage_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        storage = open_storage(store.url)
        name = storage.new_name("png")
        storage.write(name, b"1")
        store.stop()
        for use in (storage.read, storage.require, storage.exists, lambda name: storage.write(name, b"2")):
            with pytest.raises(StorageFailed):
                use(name)
        with pytest.raises(StorageFailed):
            list(storage.pages(0))


@pytest.mark.parametrize("url", ["s3://", "ftp://host/folder", "memory://"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StartError, match=f"DARKROOM_STORAGE is {url}"):
        open_storage(url)


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_a_write_that_fills_the_disk_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from server.backends.local_storage import LocalStorage; from server.errors import StorageFailed\n"
        "storage = LocalStorage(pathlib.Path(sys.argv[1]))\n"
        "try: storage.write(storage.new_name('png'), bytes(5000))\n"
        "except StorageFailed as error: print(error.status, error.reason)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, preexec_fn=limit_file_size, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
