"""The catalog that several gateways serve: its versions, and which gateway makes the next one.

The newest version is current. A gateway that makes another has its turn by a mark in its own row, so the turn of one
that dies ends with its lease. Inserting a version decides: before that nothing has changed anywhere, after it every
gateway must serve it.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from server.accounts.gateways import lease_ended
from server.accounts.store import Store
from server.accounts.tables import CatalogRow, GatewayRow

KNOWN_VERSIONS = 100
TURN_LOCK = 0x6361746C6F6773  # any number that no other program's advisory locks have


@dataclass(frozen=True, slots=True)
class Edit:
    """The edit of a swap: a catalog file's text before and after."""

    source: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class CatalogContent:
    """The content of a catalog: the text of each file by its name, the SHA-256 of the weights that they name by their
    path, and the swaps that can be undone, oldest first."""

    files: Mapping[str, str]
    weights: Mapping[str, str]
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """A version that was or is served. Versions count from 1."""

    version: int
    content: CatalogContent


class ChangeLockLost(Exception):
    """The others have given this gateway up while it made a change, or the catalog has changed meanwhile."""


class CatalogStore(Store):
    """The versions, as one gateway (`owner`) sees and makes them."""

    def current(self) -> CatalogVersion | None:
        """Return the current version; None before the first gateway of a cluster has started."""
        with self._database.read() as session:
            row = session.scalars(select(CatalogRow).order_by(CatalogRow.version.desc()).limit(1)).first()
        return None if row is None else _version(row)

    def current_number(self) -> int:
        """Return the number of the current version; 0 if there is none."""
        with self._database.read() as session:
            return session.scalars(select(func.coalesce(func.max(CatalogRow.version), 0))).one()

    def begin(self, content: CatalogContent) -> CatalogVersion:
        """Return the current version; if there is none, record this content as the first."""
        with self._database.write() as session:
            self._lock(session)
            row = session.scalars(select(CatalogRow).order_by(CatalogRow.version.desc()).limit(1)).first()
            if row is None:
                row = _row(1, content, "start")
                session.add(row)
            return _version(row)

    def known_files(self) -> set[tuple[str, str]]:
        """Return the names and texts of the files of the latest versions: any other file in a folder was edited by
        somebody."""
        with self._database.read() as session:
            latest = select(CatalogRow.files).order_by(CatalogRow.version.desc()).limit(KNOWN_VERSIONS)
            return {file for files in session.scalars(latest) for file in files.items()}

    def acquire_change_lock(self, change: str) -> bool:
        """Begin to make a change for all gateways, and return True; return False while another gateway makes one."""
        with self._database.write() as session:
            self._lock(session)
            alive = ~lease_ended(GatewayRow.lease_until, self._database.lease_now(session))
            others = exists().where(GatewayRow.changing.is_not(None), GatewayRow.owner != self._owner, alive)
            if session.scalar(select(others)):
                return False
            session.execute(update(GatewayRow).where(GatewayRow.owner == self._owner).values(changing=change))
            return True

    def release_change_lock(self) -> None:
        """End this gateway's turn: its change is made, or given up."""
        self._write(update(GatewayRow).where(GatewayRow.owner == self._owner).values(changing=None))

    def is_in_progress(self, change: str) -> bool:
        """Return whether a live gateway still makes the change."""
        with self._database.read() as session:
            alive = ~lease_ended(GatewayRow.lease_until, self._database.lease_now(session))
            return bool(session.scalar(select(exists().where(GatewayRow.changing == change, alive))))

    def commit(self, version: int, content: CatalogContent, change: str) -> None:
        """Record a version, which all gateways serve from now on. May be repeated. Raises ChangeLockLost."""
        with self._database.write() as session:
            self._lock(session)
            existing = session.get(CatalogRow, version)
            if existing is not None and existing.change == change:
                return
            newest = session.scalar(select(func.max(CatalogRow.version)))
            own = session.get(GatewayRow, self._owner)
            if newest != version - 1 or own is None or own.changing != change:
                raise ChangeLockLost
            session.add(_row(version, content, change))

    def record_served_version(self, version: int) -> None:
        """Record the version that this gateway serves."""
        self._write(update(GatewayRow).where(GatewayRow.owner == self._owner).values(catalog_version=version))

    def _lock(self, session: Session) -> None:
        """Let changes of the catalogs' rows wait for each other, until the transaction ends."""
        if not self._database.is_sqlite:
            session.execute(select(func.pg_advisory_xact_lock(TURN_LOCK)))


def _row(version: int, content: CatalogContent, change: str) -> CatalogRow:
    return CatalogRow(
        version=version,
        files=dict(content.files),
        weights=dict(content.weights),
        edits=[asdict(edit) for edit in content.edits],
        change=change,
        created_at=time.time(),
    )


def _version(row: CatalogRow) -> CatalogVersion:
    return CatalogVersion(row.version, CatalogContent(row.files, row.weights, tuple(Edit(**e) for e in row.edits)))
