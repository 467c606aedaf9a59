"""Stored files are complete or absent."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from server.backends.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "results")


def test_what_is_written_is_read(storage: Storage) -> None:
    name = storage.new_name("png")
    storage.write(name, b"pixels")
    assert storage.read(name) == b"pixels"
    assert storage.exists(name)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "", ".", "a.png", "0" * 32, f"{'0' * 31}/.png", f"{'G' * 32}.png"]
)
def test_invalid_names_have_no_path(storage: Storage, name: str) -> None:
    assert storage.path(name) is None


def test_old_files_are_found_with_what_a_crash_left_and_deleted(storage: Storage, tmp_path: Path) -> None:
    known, unknown = storage.new_name("png"), storage.new_name("png")
    storage.write(known, b"1")
    storage.write(unknown, b"2")
    partial = tmp_path / "results" / unknown[:2] / f".{unknown}.tmp"
    partial.write_bytes(b"partial")
    assert [name for page in storage.pages(older_than_s=3600) for name in page] == []
    old = {name for page in storage.pages(older_than_s=-1) for name in page}
    assert old == {known, unknown, partial.name}
    storage.delete(old - {known})
    assert storage.exists(known)
    assert not storage.exists(unknown)
    assert not partial.exists()


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_a_write_that_fills_the_disk_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from server.backends.storage import Storage; from server.errors import StorageFailed\n"
        "storage = Storage(pathlib.Path(sys.argv[1]))\n"
        "try: storage.write(storage.new_name('png'), bytes(5000))\n"
        "except StorageFailed as error: print(error.status, error.reason)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, preexec_fn=limit_file_size, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
