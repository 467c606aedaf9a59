"""Finished images in a folder, which several machines may share.

A file is written under a temporary name, synced and renamed, so a file under its final name is complete.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from server.backends.storage import NAME, Storage
from server.clock import Clock
from server.errors import StorageFailed

log = structlog.stdlib.get_logger("darkroom.storage")


class LocalStorage(Storage):
    """A folder of files, in 256 subfolders by the first two digits of their names."""

    def __init__(self, root: Path, is_recorded: Callable[[str], bool] = lambda _: False) -> None:
        super().__init__(is_recorded)
        self._root = root
        self._clock = Clock()

    def write(self, name: str, data: bytes) -> None:
        """Store a file. When this returns, it survives a crash."""
        path = self._path_for(name)
        temporary = path.with_name(f".{name}.tmp")
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                _fsync_folder(self._root)
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
        """Return the path of a stored file; None when there is none, or the name is not one that `new_name` makes."""
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

    def pages(self, older_than_s: float) -> Iterator[list[str]]:
        """Yield the names of all files that are older than this, a folder at a time. A file that lies ahead by more was
        written while the clock was ahead, and is dated anew: else it would stay until that time has come."""
        before, after = self._clock.earliest() - older_than_s, self._clock.latest() + older_than_s
        for folder in self._root.glob("??"):
            names = []
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    written_at = path.stat().st_mtime
                    if written_at < before and path.is_file():
                        names.append(path.name)
                    elif written_at > after:
                        os.utime(path)
            yield names

    def delete(self, names: Collection[str]) -> None:
        """Delete these files, as far as they are there."""
        for name in names:
            self._path_for(name.removeprefix(".")).with_name(name).unlink(missing_ok=True)

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

    def _path_for(self, name: str) -> Path:
        return self._root / name[:2] / name


def _fsync_folder(folder: Path) -> None:
    """Sync a folder: a rename in it is durable only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
