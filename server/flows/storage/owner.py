"""Whose a storage of images is: by an id that lies there and that its database has, too.

A copy of a database has the id as well: a backup that was put back, a rehearsal of that beside the server, a staging
server made of a dump. So both have a stamp, too, which whoever sweeps changes at its start and at every sweep. A
database whose stamp is not the storage's is another copy than the one that used the storage last. It says so in the
storage, so that the other one finds that there are two, and both remove nothing.
"""

import json
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from server.accounts.stored_files import StorageOwner, StoredFiles
from server.backends.storage import MARK, Storage
from server.errors import StorageFailed
from server.settings import Settings

PROOF = 20  # newest images that are all in a storage without a mark, if it is this database's
Name = Annotated[str, Field(pattern=r"^[0-9a-f]{8,32}$")]
ADOPT = "If it is this server's from now on: `darkroom store adopt`."


@dataclass(frozen=True, slots=True)
class Mark:
    """What lies in a storage: whose it is, since `at` (Unix seconds), by a server on `host` with the home `home`.
    `contested`: another copy of the database has come since."""

    id: Name
    stamp: Name
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]*$", max_length=255)]
    home: Annotated[str, Field(max_length=4096)]
    at: Annotated[float, Field(ge=0, le=1e11)]
    contested: bool = False


class StorageMarks:
    """Claims the storage of some settings for a database. All methods block."""

    def __init__(self, files: StoredFiles, storage: Storage, settings: Settings) -> None:
        self._files = files
        self._storage = storage
        self._location = settings.images
        self._home = str(settings.home.resolve())
        self._host = re.sub(r"[^A-Za-z0-9_.:-]", "-", socket.gethostname())[:255]

    def claim(self) -> str | None:
        """Stamp the storage if it is this database's, and a new or an older one's for the first time. Returns None
        then, else why nothing may be removed from it, and what to do. Raises DatabaseBusy."""
        try:
            problem, owner, mark = self._look()
            if problem is None:
                self._stamp(owner)
            elif owner is not None and mark is not None and owner.id == mark.id and not mark.contested:
                self._write(replace(mark, contested=True))
        except StorageFailed as error:
            return self._failure(error)
        return problem

    def is_of(self, owner: StorageOwner | None) -> bool:
        """Return whether this home's server stamped the storage last, for the database with this owner. Raises
        StorageFailed."""
        mark = self._read()
        if mark is None or owner is None or mark.contested or mark.id != owner.id:
            return False
        here = (self._host, self._home) == (mark.host, mark.home)
        return here and mark.stamp in {owner.stamp, owner.next_stamp}

    def find_problem(self) -> str | None:
        """Return what `claim` would, and write nothing. Raises DatabaseBusy."""
        try:
            return self._look()[0]
        except StorageFailed as error:
            return self._failure(error)

    def _look(self) -> tuple[str | None, StorageOwner | None, Mark | None]:
        """Compare both sides. What looks wrong is looked at again: another server may have stamped in between."""
        for _ in range(2):
            owner, mark = self._files.owner(), self._read()
            if (problem := self._problem(owner, mark)) is None:
                break
        return problem, owner, mark

    def adopt(self) -> None:
        """Make the storage this database's, whosever it was. What this database has named and not recorded by now stays
        in it: it may have been recorded in the copy that comes after this one. Raises StorageFailed."""
        self._files.forget_unneeded()
        self._stamp(None)  # under a new id, so that no other copy of the database takes it for its own

    def _stamp(self, owner: StorageOwner | None) -> None:
        """Write a new stamp to both. Whatever breaks off in between, the storage has one of the database's two."""
        new = secrets.token_hex(8)
        owner = owner or StorageOwner(secrets.token_hex(16), new)
        self._files.set_owner(replace(owner, next_stamp=new))
        self._write(Mark(owner.id, new, self._host, self._home, time.time()))
        self._files.set_owner(replace(owner, stamp=new))

    def _problem(self, owner: StorageOwner | None, mark: Mark | None) -> str | None:
        if mark is None:
            newest = self._files.newest_images(PROOF)
            if self._is_empty():
                return self._message("empty", mark) if newest else None
            has_them = bool(newest) and all(map(self._storage.exists, newest))  # as of a version without marks
            return None if has_them else self._message("unknown", mark)
        if owner is None or owner.id != mark.id:
            return self._message("other", mark)
        if mark.contested or mark.stamp not in {owner.stamp, owner.next_stamp}:
            return self._message("copy", mark)
        return None

    def _failure(self, error: StorageFailed) -> str:
        return f"Nothing is removed from {self._location}: it can't be read or written: {error.reason}"

    def _message(self, kind: Literal["empty", "unknown", "other", "copy"], mark: Mark | None) -> str:
        text = f"Nothing is removed from {self._location}: "
        if kind == "empty":
            return (
                f"{text}it has none of this database's images. Is its disk mounted, and DARKROOM_STORAGE right? {ADOPT}"
            )
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

    def _read(self) -> Mark | None:
        data = self._storage.read_mark()
        if data is None:
            return None
        try:
            return TypeAdapter(Mark).validate_json(data)
        except ValidationError as error:  # whoever can write there can write anything
            raise StorageFailed(f"its mark, {MARK}, is not one that a server wrote") from error

    def _write(self, mark: Mark) -> None:
        self._storage.write_mark(json.dumps(asdict(mark)).encode())
