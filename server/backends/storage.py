"""Finished images, under names of 128 random bits: in a folder or in an object store.

A file is there whole or not at all. Its name is the database's (`server/accounts/stored_files.py`), which knows by it
which files are its own. What is swept goes to a trash inside the storage first.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from server.errors import ImageMissing
from server.threads import Threads

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
