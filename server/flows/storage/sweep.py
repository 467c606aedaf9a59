"""Sweeps a storage: files that no record needs, and images whose time is over, go to its trash, and from there after
days. Nothing goes that this database's servers have not written, or from a storage that is another's.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from server.accounts.db import PAGE, Database
from server.accounts.results import ResultStore
from server.accounts.stored_files import StoredFiles
from server.backends.object_storage import open_storage
from server.backends.storage import Storage
from server.clock import DAY_S
from server.errors import StorageFailed
from server.flows.storage.owner import StorageMarks
from server.settings import Settings

log = structlog.stdlib.get_logger("darkroom.storage")

DAILY_SHARE = 0.05  # of the files of a storage, that may go to the trash in a day without an operator's word
DAILY_FILES = 100  # which may always
RESTS = 96  # times that a server leaves out its sweep after one that the storage refused: a day
FIRST_CLAIMS = 2  # of a server's start and its first look: nothing goes before the next one

MOST_NAMED = 10_000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Swept:
    """How many files have come into the trash, and how many were deleted from it."""

    trashed: int
    deleted: int


class StorageSweep:
    """Sweeps one storage, for the one server that runs maintenance, and puts back what it took. All methods block.
    `problem` says why files stay that should go; None if all is well."""

    def __init__(self, settings: Settings, files: StoredFiles, results: ResultStore, storage: Storage) -> None:
        days = settings.results_keep_days
        self._unneeded_s = settings.result_grace_s
        self._images_s = None if days is None else days * DAY_S
        self._trash_s = settings.trash_days * DAY_S
        self._marks = StorageMarks(files, storage, settings)
        self._files = files
        self._results = results
        self._storage = storage
        self.problem: str | None = None
        self._claims = 0
        self._rests = 0
        self._logged: set[str] = set()

    def claim(self) -> bool:
        """Return whether the storage is this database's, and stamp it then. Raises DatabaseBusy."""
        problem = self._marks.claim()
        self._claims = 0 if problem else self._claims + 1
        self._remember(problem)
        return problem is None

    def adopt(self) -> None:
        """Make the storage this database's. What lies there stays. Raises StorageFailed and DatabaseBusy."""
        self._marks.adopt()

    def run(self) -> None:
        """Sweep once, if the storage was this database's alone since the last time: so another server that uses it has
        had the time to say so. Raises DatabaseBusy."""
        before = self.problem
        if not self.claim() or self._claims <= FIRST_CLAIMS:
            return
        if self._rests:
            self._rests -= 1
            self._remember(before)
        elif self._guarded(self._sweep) is None:
            self._rests = RESTS

    def run_for_operator(self, *, with_unknown: bool) -> Swept | None:
        """Sweep at once and without a limit; returns None if nothing may be removed. `with_unknown`: also files that
        this database's servers have not written. Raises DatabaseBusy."""
        self.problem = self._marks.find_problem()  # without a stamp: a server may be writing its own
        if self.problem is not None:
            return None
        return self._guarded(partial(self._sweep_all, with_unknown=with_unknown))

    def delete(self, name: str) -> None:
        """Delete the file of an image that its owner has deleted. In a storage that is another's it stays. Raises
        DatabaseBusy."""
        if (problem := self._marks.find_problem()) is not None:
            self._remember(problem)
            return
        try:
            self._storage.delete([name])
        except StorageFailed as error:  # a sweep takes it: it has no record any more
            log.warning("the file of a deleted image stays for now", name=name, reason=error.reason)
        else:
            self._files.forget([name])

    def put_back(self, wanted: Collection[str] | None) -> tuple[int, int]:
        """Move files, or all, back from the trash. Returns how many, and how many images are there again. Raises
        FileNotFoundError, before anything is moved, StorageFailed and DatabaseBusy."""
        trashed = {name for page in self._storage.names(trashed=True) for name in page}
        names = sorted(trashed if wanted is None else wanted)
        # one that is in its place was moved by a command that was killed before it could record that
        if missing := next((name for name in names if name not in trashed and not self._storage.exists(name)), None):
            raise FileNotFoundError(missing)
        images = 0
        for start in range(0, len(names), PAGE):
            page = names[start : start + PAGE]
            self._storage.put_back(page)  # first: an image that is listed must be there
            images += self._files.mark_put_back(page)
        return len(names), images

    def due(self) -> int:
        """Return how many files no record needs."""
        return len(self._unneeded(MOST_NAMED))

    def unknown(self) -> Iterator[list[str]]:
        """Yield the names of files that this database's servers have not written, some at a time."""
        for names in self._storage.names():
            yield sorted(set(names) - self._files.known(names))

    def _sweep(self, *, without_limit: bool = False) -> Swept:
        files, lately = self._files.count()
        allowed = files if without_limit else max(0, max(DAILY_FILES, int(files * DAILY_SHARE)) - lately)
        trashed = self._in_pages(allowed, lambda most: self._trash(self._expired(most), expired=True))
        trashed += self._in_pages(allowed - trashed, lambda most: self._trash(self._unneeded(most), expired=False))
        if trashed == allowed and (self._unneeded(1) or self._expired(1)):
            self._remember(
                f"More files of the storage are due than the {allowed} that may go in a day. Is that meant? Then "
                "`darkroom store sweep` moves all of them to the trash."
            )
        return Swept(trashed, self._in_pages(None, self._delete_outdated))

    def _trash(self, names: Collection[str], *, expired: bool) -> int:
        if not names:
            return 0
        self._storage.trash(names)  # first: what is marked and not moved would stay for ever
        if needed := self._files.mark_trashed(names, expired=expired):
            self._storage.put_back(needed)
        return len(names)

    def _unneeded(self, limit: int) -> list[str]:
        return self._files.unneeded(self._unneeded_s, limit)

    def _expired(self, limit: int) -> list[str]:
        return [] if self._images_s is None else self._results.expired(self._images_s, limit)

    def _sweep_all(self, *, with_unknown: bool) -> Swept:
        unknown = 0
        for names in self.unknown() if with_unknown else ():
            self._storage.trash(names)
            self._files.record_trashed(names)
            unknown += len(names)
        swept = self._sweep(without_limit=True)
        return replace(swept, trashed=swept.trashed + unknown)

    def _delete_outdated(self, limit: int) -> int:
        names = self._files.outdated_trash(self._trash_s, limit)
        if names:
            self._storage.delete(names, trashed=True)
            self._files.forget(names, trashed=True)
        return len(names)

    @staticmethod
    def _in_pages(limit: int | None, work: Callable[[int], int]) -> int:
        """Repeat work in pages until nothing is left, or the limit is reached. Others write between two pages."""
        done = 0
        while (most := PAGE if limit is None else min(PAGE, limit - done)) > 0:
            done += (page := work(most))
            if page < most:
                break
        return done

    def _guarded(self, work: Callable[[], Result]) -> Result | None:
        """Do work on the storage. One that takes no change is a problem, and nothing is lost."""
        try:
            return work()
        except StorageFailed as error:
            self._remember(f"Files that nobody needs stay: the storage does not let them go: {error.reason}")
            return None

    def _remember(self, problem: str | None) -> None:
        """Keep what is wrong, and log it once."""
        if problem is not None and problem not in self._logged:
            log.warning(problem)
            self._logged.add(problem)
        self.problem = problem


def open_sweep(settings: Settings, database: Database) -> StorageSweep:
    """Open the sweep of the settings' storage, for a command."""
    storage = open_storage(settings.images, proxy=settings.proxy)
    return StorageSweep(settings, StoredFiles(database), ResultStore(database), storage)
