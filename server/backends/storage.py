"""Finished images, under names of 128 random bits: in a folder, which several machines may share, or in an object store
(`object_storage`).

A file is there whole or not at all. Its name is the database's (`server/accounts/stored_files.py`), which knows by it
which files are its own. What is swept goes to a trash inside the storage first.
"""

import errno
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from server.clock import Clock
from server.errors import ImageMissing, StorageFailed
from server.threads import Threads

log = structlog.stdlib.get_logger("darkroom.storage")

THREADS = 8  # a disk gains from several accesses at once, and one that hangs must not stop at one
NAME = re.compile(r"[0-9a-f]{32}\.[a-z0-9]{1,8}")
MARK = ".darkroom-storage"  # the file that says whose the storage is
MOST_OF_MARK = 65_536  # bytes that are read of it
TRASH = "trash"  # the folder, or the part of a prefix, of what was swept


class Storage(ABC):
    """A store of files by name. All methods block. On an event loop, the coroutine `in_thread` runs a function that
    uses them in the threads for files. All of them raise StorageFailed if the disk or the store fails.

    `is_recorded` says whether a record names a file: then it must be there.
    """

    def __init__(self, is_recorded: Callable[[str], bool] = lambda _: False) -> None:
        self._is_recorded = is_recorded
        self.in_thread = Threads("files", THREADS).run

    def require(self, name: str) -> None:
        """Check that a file is there. Raises FileNotFoundError for a file that was deleted, and ImageMissing for one
        that should be there."""
        if not self.exists(name):
            raise self.missing_file_error(name)

    def missing_file_error(self, name: str) -> Exception:
        """Return the error that says why a file is not there: it was deleted, or it is lost."""
        return ImageMissing(name) if self._is_recorded(name) else FileNotFoundError(name)

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Store a file. When this returns, it survives a crash."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a stored file. Raises as `require` does."""

    @abstractmethod
    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Read a part of a file, from byte `start` to before `end`. Raises as `require` does."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        ...

    @abstractmethod
    def names(self, *, trashed: bool = False) -> Iterator[list[str]]:
        """Yield the names of all files, or of those in the trash, some at a time. What else lies there is not ours."""

    @abstractmethod
    def delete(self, names: Collection[str], *, trashed: bool = False) -> None:
        """Delete these files, or those in the trash, as far as they are there."""

    @abstractmethod
    def trash(self, names: Collection[str]) -> None:
        """Move these files to the trash, as far as they are there."""

    @abstractmethod
    def put_back(self, names: Collection[str]) -> None:
        """Move these files back from the trash, as far as they are there."""

    @abstractmethod
    def read_mark(self) -> bytes | None:
        """Read what says whose the storage is; None if nothing does."""

    @abstractmethod
    def write_mark(self, mark: bytes) -> None:
        """Write what says whose the storage is, in place of what said it."""

    def path(self, name: str) -> Path | None:
        """Return the path of the file on this machine's disk, if it is there."""
        return None


class LocalStorage(Storage):
    """A folder of files, in 256 subfolders by the first two digits of their names. A file is written under a temporary
    name, synced and renamed, so a file under its final name is complete."""

    def __init__(self, root: Path, is_recorded: Callable[[str], bool] = lambda _: False) -> None:
        super().__init__(is_recorded)
        self._root = root
        self._clock = Clock()

    def write(self, name: str, data: bytes) -> None:
        """Store a file. When this returns, it survives a crash."""
        self._write(self._path_for(name), data)

    def read_mark(self) -> bytes | None:
        """Read what says whose the storage is; None if nothing does."""
        try:
            mark = os.open(self._root / MARK, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(str(error)) from error
        with _translated(), os.fdopen(mark, "rb") as file:
            return file.read(MOST_OF_MARK)

    def write_mark(self, mark: bytes) -> None:
        """Write what says whose the storage is, in place of what said it."""
        self._write(self._root / MARK, mark)

    def _write(self, path: Path, data: bytes) -> None:
        name, temporary = path.name, _unfinished(path)
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                _fsync_folder(path.parent.parent)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            _fsync_folder(path.parent)
        except OSError as error:
            log.error("a file can't be stored", name=name, reason=str(error))  # noqa: TRY400  # its cause is outside
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StorageFailed(str(error)) from error

    def path(self, name: str) -> Path | None:
        """Return the path of a stored file; None when there is none, or the name is not one that stored files have."""
        if not NAME.fullmatch(name):
            return None
        path = self._path_for(name)
        return path if path.is_file() else None

    def read(self, name: str) -> bytes:
        """Read a stored file. Raises as `require` does."""
        with self._opened(name) as path:
            return path.read_bytes()

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Read a part of a file, from byte `start` to before `end`. Raises as `require` does."""
        with self._opened(name) as path, path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        return self.path(name) is not None

    def names(self, *, trashed: bool = False) -> Iterator[list[str]]:
        """Yield the names of all files, or of those in the trash, a folder at a time."""
        with _translated():
            for folder in self._folder(trashed=trashed).glob("??"):
                yield [path.name for path in folder.iterdir() if NAME.fullmatch(path.name)]

    def older(self, max_age_s: float) -> Iterator[list[str]]:
        """Yield the names of all files that are older than this, a folder at a time. A file that lies ahead by more was
        written while the clock was ahead, and is dated anew: else it would stay until that time has come."""
        before, after = self._clock.earliest() - max_age_s, self._clock.latest() + max_age_s
        for folder in self._root.glob("??"):
            names = []
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    written_at = path.stat().st_mtime
                    if written_at > after:
                        os.utime(path)
                    elif written_at < before and NAME.fullmatch(path.name):
                        names.append(path.name)
            yield names

    def delete(self, names: Collection[str], *, trashed: bool = False) -> None:
        """Delete these files, or those in the trash, as far as they are there, and what a crash has left of them."""
        with _translated():
            for name in names:
                path = self._path_for(name, trashed=trashed)
                path.unlink(missing_ok=True)
                _unfinished(path).unlink(missing_ok=True)

    def trash(self, names: Collection[str]) -> None:
        """Move these files to the trash, as far as they are there, and delete what a crash has left of them."""
        with _translated():
            for name in names:
                _unfinished(self._path_for(name)).unlink(missing_ok=True)
                _move(self._path_for(name), self._path_for(name, trashed=True))

    def put_back(self, names: Collection[str]) -> None:
        """Move these files back from the trash, as far as they are there."""
        with _translated():
            for name in names:
                _move(self._path_for(name, trashed=True), self._path_for(name))

    @contextmanager
    def _opened(self, name: str) -> Iterator[Path]:
        path = self.path(name)
        if path is None:
            raise self.missing_file_error(name)
        try:
            yield path
        except FileNotFoundError as error:
            raise self.missing_file_error(name) from error
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def _folder(self, *, trashed: bool = False) -> Path:
        return self._root / TRASH if trashed else self._root

    def _path_for(self, name: str, *, trashed: bool = False) -> Path:
        return self._folder(trashed=trashed) / name[:2] / name


def _unfinished(path: Path) -> Path:
    """Return the name of a file while it is written."""
    return path.with_name(f".{path.name.removeprefix('.')}.tmp")


def _move(source: Path, target: Path) -> None:
    """Move a file, also to another disk, where it is whole before the first is gone."""
    if not source.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, _unfinished(target))
        with _unfinished(target).open("rb") as copy:
            os.fsync(copy.fileno())
        _unfinished(target).rename(target)
        source.unlink()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise StorageFailed where the folder can't be read or changed."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(str(error)) from error


def _fsync_folder(folder: Path) -> None:
    """Sync a folder: a rename in it is durable only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
