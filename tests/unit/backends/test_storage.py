"""Stored files are complete or absent, in a folder and in an object store."""

import resource
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.backends.object_storage import open_storage
from server.backends.storage import LocalStorage, Storage
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


def new_name() -> str:
    return f"{uuid.uuid4().hex}.png"


def test_what_is_written_is_read(storage: LocalStorage) -> None:
    name = new_name()
    storage.write(name, b"pixels")
    assert storage.read(name) == b"pixels"
    assert storage.exists(name)


def test_a_part_of_a_file_is_read(storage: Storage) -> None:
    name = new_name()
    storage.write(name, b"0123456789")
    assert storage.read_range(name, 2, 5) == b"234"


def test_a_lost_file_is_told_from_a_deleted_one(storage: Storage) -> None:
    deleted = new_name()
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


def all_names(storage: Storage, *, trashed: bool = False) -> set[str]:
    return {name for page in storage.names(trashed=trashed) for name in page}


def test_files_go_to_the_trash_come_back_and_are_deleted(storage: Storage) -> None:
    kept, taken, gone = new_name(), new_name(), new_name()
    for name in (kept, taken, gone):
        storage.write(name, name.encode())
    storage.write_mark(b"ours")
    storage.trash([taken, gone, new_name()])
    assert (all_names(storage), all_names(storage, trashed=True)) == ({kept}, {taken, gone})
    assert not storage.exists(taken)
    storage.put_back([taken, new_name()])
    storage.delete([gone, kept], trashed=True)
    assert (all_names(storage), all_names(storage, trashed=True)) == ({kept, taken}, set())
    assert storage.read(taken) == taken.encode()
    storage.delete([kept, new_name()])
    assert all_names(storage) == {taken}


def test_a_mark_is_read_and_replaced(storage: Storage) -> None:
    assert storage.read_mark() is None
    storage.write_mark(b"1")
    storage.write_mark(b"2")
    assert (storage.read_mark(), all_names(storage)) == (b"2", set())


def test_what_a_crash_left_of_a_file_goes_with_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    name = new_name()
    partial = tmp_path / name[:2] / f".{name}.tmp"
    partial.parent.mkdir()
    partial.write_bytes(b"partial")
    assert all_names(storage) == set()
    storage.trash([name])
    assert not partial.exists()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second disk")
def test_the_trash_may_be_on_another_disk(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        (tmp_path / "trash").symlink_to(elsewhere)
        storage = LocalStorage(tmp_path)
        storage.write(name := new_name(), b"pixels")
        storage.trash([name])
        assert (all_names(storage), all_names(storage, trashed=True)) == (set(), {name})
        assert (Path(elsewhere) / name[:2] / name).read_bytes() == b"pixels"
        storage.put_back([name])
        assert storage.read(name) == b"pixels"


def test_a_store_that_is_away_is_storage_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        storage = open_storage(store.url)
        name = new_name()
        storage.write(name, b"1")
        store.stop()
        for use in (storage.read, storage.require, storage.exists, lambda name: storage.write(name, b"2")):
            with pytest.raises(StorageFailed):
                use(name)
        with pytest.raises(StorageFailed):
            list(storage.names())


@pytest.mark.parametrize("url", ["s3://", "ftp://host/folder", "memory://"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StartError, match=f"DARKROOM_STORAGE is {url}"):
        open_storage(url)


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_a_write_that_fills_the_disk_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from server.backends.storage import LocalStorage; from server.errors import StorageFailed\n"
        "storage = LocalStorage(pathlib.Path(sys.argv[1]))\n"
        "try: storage.write('0' * 32 + '.png', bytes(5000))\n"
        "except StorageFailed as error: print(error.status, error.reason)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, preexec_fn=limit_file_size, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
