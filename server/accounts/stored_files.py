"""The files that the servers of a database have written: their names are given here, before there is a file.

So a database knows its own files. A file that it does not know belongs to another database, or was written after the
moment to which this one was put back: nothing is ever removed because it is unknown.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CursorResult, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from server.accounts.clock_skew import reset_future_times
from server.accounts.response_tables import ConversationFileRow, FileRow
from server.accounts.result_tables import ResultRow, StorageOwnerRow, StoredFileRow
from server.accounts.store import Store
from server.clock import DAY_S

NEEDS = (  # what keeps a file
    exists().where(ResultRow.name == StoredFileRow.name, ResultRow.deleted_at.is_(None)),
    exists().where(FileRow.name == StoredFileRow.name),
    exists().where(ConversationFileRow.name == StoredFileRow.name),
)


@dataclass(frozen=True, slots=True)
class StorageOwner:
    """The storage that is this database's, and the stamps of which the newest lies there."""

    id: str
    stamp: str
    next_stamp: str | None = None


class StoredFiles(Store):
    """Names files, finds those that no record needs any more, and remembers what is in the trash."""

    def name_new(self, extension: str, n: int = 1) -> list[str]:
        """Return `n` new names that can't be guessed, for files that are written next."""
        names = [f"{secrets.token_hex(16)}.{extension}" for _ in range(n)]
        with self._database.write() as session:
            session.add_all(StoredFileRow(name=name, written_at=self.now()) for name in names)
        return names

    def forget(self, names: Collection[str], *, trashed: bool = False) -> None:
        """Forget files that were deleted. `trashed`: in the trash; one that was put back meanwhile is not forgotten."""
        where = (StoredFileRow.trashed_at.is_not(None),) if trashed else ()
        self._write(delete(StoredFileRow).where(StoredFileRow.name.in_(names), *where))

    def forget_unneeded(self) -> None:
        """Forget files that nothing needs, outside the trash: they are nobody's then, and stay."""
        self._write(delete(StoredFileRow).where(StoredFileRow.trashed_at.is_(None), *(~need for need in NEEDS)))

    def known(self, names: Collection[str]) -> set[str]:
        """Return which of these files this database's servers have written."""
        with self._database.read() as session:
            return set(session.scalars(select(StoredFileRow.name).where(StoredFileRow.name.in_(names))))

    def unneeded(self, min_age_s: float, limit: int) -> list[str]:
        """Return the names of files older than this that no image, response or conversation needs: a server died after
        it wrote them, or their records are gone."""
        row, clock = StoredFileRow, self._database.clock
        with self._database.write() as session:
            reset_future_times(session, row.written_at, clock, min_age_s)
        query = select(row.name).where(
            row.trashed_at.is_(None),
            row.written_at < clock.earliest() - min_age_s,
            *(~need for need in NEEDS),
        )
        with self._database.read() as session:
            return list(session.scalars(query.order_by(row.written_at).limit(limit)))

    def count(self) -> tuple[int, int]:
        """Return how many files there are, and how many came into the trash within a day."""
        lately = StoredFileRow.trashed_at > self._database.clock.earliest() - DAY_S
        with self._database.read() as session:
            files = session.scalars(select(func.count()).where(StoredFileRow.trashed_at.is_(None))).one()
            return files, session.scalars(select(func.count()).where(lately)).one()

    def mark_trashed(self, names: Collection[str], *, expired: bool) -> set[str]:
        """Record that these files are in the trash. `expired`: they are images, which are deleted at the same moment:
        so those that come back are told from those that a person has deleted. Else returns the files that were recorded
        since they were found to be unneeded, and must go back."""
        now = self.now()
        needed_query = select(StoredFileRow.name).where(StoredFileRow.name.in_(names), or_(*NEEDS))
        with self._database.write() as session:
            needed = set() if expired else set(session.scalars(needed_query))
            trashed = set(names) - needed
            session.execute(update(StoredFileRow).where(StoredFileRow.name.in_(trashed)).values(trashed_at=now))
            if expired:
                live = (ResultRow.name.in_(names), ResultRow.deleted_at.is_(None))
                session.execute(update(ResultRow).where(*live).values(deleted_at=now))
        return needed

    def record_trashed(self, names: Collection[str]) -> None:
        """Record files that others have written, and that are in the trash."""
        now = self.now()
        with self._database.write() as session:
            session.add_all(StoredFileRow(name=name, written_at=now, trashed_at=now) for name in names)

    def mark_put_back(self, names: Collection[str]) -> int:
        """Record that these files are coming back from the trash, and return how many images are back. A file without
        an image is forgotten: no sweep takes it again."""
        same = select(StoredFileRow.trashed_at).where(StoredFileRow.name == ResultRow.name).scalar_subquery()
        back = (ResultRow.name.in_(names), ResultRow.deleted_at == same)
        mine = StoredFileRow.name.in_(names)
        with self._database.write() as session:
            result = session.execute(update(ResultRow).where(*back).values(deleted_at=None))
            session.execute(delete(StoredFileRow).where(mine, *(~need for need in NEEDS)))
            session.execute(update(StoredFileRow).where(mine).values(trashed_at=None))
            return cast(CursorResult[Any], result).rowcount

    def outdated_trash(self, max_age_s: float, limit: int) -> list[str]:
        """Return the names of files that came into the trash longer ago than this."""
        row, clock = StoredFileRow, self._database.clock
        query = select(row.name).where(row.trashed_at < clock.earliest() - max_age_s).order_by(row.trashed_at)
        ahead, now = row.trashed_at > clock.latest() + max_age_s, clock.latest()
        same = exists().where(row.name == ResultRow.name, row.trashed_at == ResultRow.deleted_at, ahead)
        with self._database.write() as session:  # as `reset_future_times` does it, for both times of one moment
            session.execute(update(ResultRow).where(same).values(deleted_at=now))
            session.execute(update(row).where(ahead).values(trashed_at=now))
        with self._database.read() as session:
            return list(session.scalars(query.limit(limit)))

    def newest_images(self, limit: int) -> list[str]:
        """Return the names of the images that were recorded last, and must be in the storage."""
        query = select(ResultRow.name).where(ResultRow.deleted_at.is_(None)).order_by(ResultRow.created_at.desc())
        with self._database.read() as session:
            return list(session.scalars(query.limit(limit)))

    def owner(self) -> StorageOwner | None:
        """Return which storage is this database's; None for a database that never had one, or was put back."""
        with self._database.read() as session:
            row = session.scalars(select(StorageOwnerRow)).first()
        return None if row is None else row.to(StorageOwner)

    def set_owner(self, owner: StorageOwner | None) -> None:
        """Record which storage is this database's, and the stamps."""
        with self._database.write() as session:
            write_owner(session, owner)


def write_owner(session: Session, owner: StorageOwner | None) -> None:
    """Record in the session's transaction which storage is its database's; None for none."""
    session.execute(delete(StorageOwnerRow))
    if owner is not None:
        session.add(StorageOwnerRow(id=owner.id, stamp=owner.stamp, next_stamp=owner.next_stamp))
