"""Finished images, under names of 128 random bits: in a folder or in an object store.

A file is there whole or not at all. The caller records it afterwards; a sweep deletes files without a record.
"""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from server.errors import ImageMissing
from server.threads import Threads

THREADS = 8  # a disk gains from several accesses at once, and one that hangs must not stop at one
NAME = re.compile(r"[0-9a-f]{32}\.[a-z0-9]{1,8}")


class Storage(ABC):
    """A store of files by name. All methods block. On an event loop, the coroutine `in_thread` runs a function that
    uses them in the threads for files. All of them raise StorageFailed if the disk or the store fails.

    `is_recorded` says whether a record names a file: then it must be there.
    """

    def __init__(self, is_recorded: Callable[[str], bool] = lambda _: False) -> None:
        self._is_recorded = is_recorded
        self.in_thread = Threads("files", THREADS).run

    def new_name(self, extension: str) -> str:
        """Return a new name that can't be guessed."""
        return f"{secrets.token_hex(16)}.{extension}"

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
    def pages(self, older_than_s: float) -> Iterator[list[str]]:
        """Yield the names of all files that are older than this, some at a time. A younger file may not be recorded
        yet."""

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Delete these files, as far as they are there."""

    def path(self, name: str) -> Path | None:
        """Return the path of the file on this machine's disk, if it is there."""
        return None
