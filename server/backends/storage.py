"""Finished pictures on the local disk, under names of 128 random bits.

A file is written under a temporary name, synced and renamed, so a file under its final name is complete. The caller
records it afterwards; a sweep deletes files without a record.
"""

import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from server.clock import Clock
from server.errors import StorageFailed
from server.threads import Threads

log = structlog.stdlib.get_logger("darkroom.storage")

THREADS = 8  # a disk gains from several accesses at once, and one that hangs must not stop at one
NAME = re.compile(r"[0-9a-f]{32}\.[a-z0-9]{1,8}")


class Storage:
    """A folder of results, in 256 subfolders by the first two digits.

    All methods block. On an event loop, the coroutine `in_thread` runs what uses them in the threads for files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clock = Clock()
        self.in_thread = Threads("files", THREADS).run

    def new_name(self, extension: str) -> str:
        """A new name that can't be guessed."""
        return f"{secrets.token_hex(16)}.{extension}"

    def write(self, name: str, data: bytes) -> None:
        """Store a file atomically. Raises StorageFailed, for example when the disk is full."""
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
        """The path of a stored file; None when there is none, or the name is not one that `new_name` makes."""
        if not NAME.fullmatch(name):
            return None
        path = self._path_for(name)
        return path if path.is_file() else None

    def read(self, name: str) -> bytes:
        """A stored file. Raises FileNotFoundError, and StorageFailed if it can't be read."""
        path = self.path(name)
        if path is None:
            raise FileNotFoundError(name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def exists(self, name: str) -> bool:
        return self.path(name) is not None

    def pages(self, older_than_s: float) -> Iterator[list[str]]:
        """The names of all files that are older than this, a folder at a time. A younger file may not be recorded
        yet."""
        cutoff = self._clock.cautious() - older_than_s
        for folder in self._root.glob("??"):
            names = []
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    if path.is_file() and path.stat().st_mtime < cutoff:
                        names.append(path.name)
            yield names

    def delete(self, names: Collection[str]) -> None:
        """Delete these files, as far as they are there."""
        for name in names:
            self._path_for(name.removeprefix(".")).with_name(name).unlink(missing_ok=True)

    def _path_for(self, name: str) -> Path:
        return self._root / name[:2] / name


def _fsync_folder(folder: Path) -> None:
    """A rename is durable only after its folder is synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
