"""Whose a storage of images is: by an id that lies there and that its database has, too.

A copy of a database has the id as well: a backup that was put back, a rehearsal of that beside the server, a staging
server made of a dump. So both have a stamp, too, which whoever sweeps changes at its start and at every sweep. A
database whose stamp is not the storage's is another copy than the one that used the storage last. It says so in the
storage, so that the other one finds that there are two, and both remove nothing.
"""

import json
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from server.accounts.stored_files import StorageOwner, StoredFiles
from server.backends.storage import Storage
from server.errors import StorageFailed

PROOF = 20  # newest images that are all in a storage without a mark, if it is this database's
ADOPT = "If it is this server's from now on: `darkroom store adopt`."


@dataclass(frozen=True, slots=True)
class Mark:
    """What lies in a storage: whose it is, since `at` (Unix seconds), by a server on `host`. `contested`: another copy
    of the database has come since."""

    id: str
    stamp: str
    host: str
    at: float
    contested: bool = False


class StorageMarks:
    """Claims a storage for a database. All methods block. `location` is how settings name the storage."""

    def __init__(self, files: StoredFiles, storage: Storage, location: str) -> None:
        self._files = files
        self._storage = storage
        self._location = location

    def claim(self) -> str | None:
        """Stamp the storage if it is this database's, and a new or an older one's for the first time. Returns None
        then, else why nothing may be removed from it, and what to do. Raises DatabaseBusy."""
        try:
            owner, mark = self._files.owner(), self._read()
            if (problem := self._problem(owner, mark)) is None:
                self._stamp(owner)
            elif owner is not None and mark is not None and owner.id == mark.id and not mark.contested:
                self._write(replace(mark, contested=True))
        except StorageFailed as error:
            return self._failure(error)
        return problem

    def find_problem(self) -> str | None:
        """Return what `claim` would, and write nothing. Raises DatabaseBusy."""
        try:
            return self._problem(self._files.owner(), self._read())
        except StorageFailed as error:
            return self._failure(error)

    def adopt(self) -> None:
        """Make the storage this database's, whosever it was. Raises StorageFailed."""
        self._stamp(None)  # under a new id, so that no other copy of the database takes it for its own

    def _stamp(self, owner: StorageOwner | None) -> None:
        """Write a new stamp to both. Whatever breaks off in between, the storage has one of the database's two."""
        new = secrets.token_hex(8)
        owner = owner or StorageOwner(secrets.token_hex(16), new)
        self._files.set_owner(replace(owner, next_stamp=new))
        self._write(Mark(owner.id, new, socket.gethostname(), time.time()))
        self._files.set_owner(replace(owner, stamp=new))

    def _problem(self, owner: StorageOwner | None, mark: Mark | None) -> str | None:
        if mark is None:
            return None if self._is_empty() or self._has_newest_images() else self._message("unknown", mark)
        if owner is None or owner.id != mark.id:
            return self._message("other", mark)
        if mark.contested or mark.stamp not in {owner.stamp, owner.next_stamp}:
            return self._message("copy", mark)
        return None

    def _failure(self, error: StorageFailed) -> str:
        return f"Nothing is removed from {self._location}: it can't be read or written: {error.reason}"

    def _message(self, kind: Literal["unknown", "other", "copy"], mark: Mark | None) -> str:
        text = f"Nothing is removed from {self._location}: "
        if mark is None:
            return f"{text}it has images that this database does not know. Is DARKROOM_DATABASE the right one? {ADOPT}"
        when = f"{datetime.fromtimestamp(mark.at, UTC):%Y-%m-%d %H:%M} UTC by a server on {mark.host}"
        if kind == "other":
            return (
                f"{text}it belongs to another database, and was used last {when}. Is DARKROOM_DATABASE the right one? "
                f"A second server needs a DARKROOM_STORAGE of its own. {ADOPT}"
            )
        return (
            f"{text}another copy of this database has used it, last {when}. This one was put back from a copy, or the "
            f"other one still runs: then give one of them another DARKROOM_STORAGE. {ADOPT}"
        )

    def _is_empty(self) -> bool:
        return not any(self._storage.names()) and not any(self._storage.names(trashed=True))

    def _has_newest_images(self) -> bool:
        """Return whether a database of a version without marks has its images here."""
        newest = self._files.newest_images(PROOF)
        return bool(newest) and all(map(self._storage.exists, newest))

    def _read(self) -> Mark | None:
        data = self._storage.read_mark()
        if data is None:
            return None
        try:
            return Mark(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StorageFailed(f"its mark can't be read: {error}") from error

    def _write(self, mark: Mark) -> None:
        self._storage.write_mark(json.dumps(asdict(mark)).encode())
