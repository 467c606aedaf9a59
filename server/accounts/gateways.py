"""The servers of a database: which of them run, where they reach each other, and which runs maintenance.

Each renews a lease. The row of one whose lease had run out at two looks is removed, and then all that it owned may be
given up. A server that was only slow to renew, or that lost its database for a while together with the others, keeps
its row.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, delete, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from server.accounts.db import Database
from server.accounts.store import Store
from server.accounts.tables import GatewayRow

LONGEST_LEASE_S = 7200.0  # twice what the setting allows


@dataclass(frozen=True, slots=True)
class Gateway:
    """A server that runs. `url` None: no other server may reach it."""

    owner: str
    url: str | None


@dataclass(frozen=True, slots=True)
class GatewayReport(Gateway):
    """A server by its row. Times are Unix seconds by the database's clock; `alive`: its lease has not run out."""

    started_at: float
    lease_until: float
    alive: bool
    catalog_version: int | None


class GatewayStore(Store):
    """The servers of a database, as one of them (`owner`, reached at `url`) sees them."""

    def __init__(self, database: Database, owner: str, url: str | None, lease_s: float) -> None:
        super().__init__(database)
        self.owner = owner
        self._url = url
        self._lease_s = lease_s
        self._started_at: float | None = None
        self._seen_expired: dict[str, float] = {}  # at the last look: owners and until when their leases were

    def register(self) -> list[Gateway]:
        """Add this server at its start, remove those that can't run any more, and return the others.

        A SQLite file has one server, by its lock. With PostgreSQL, a server that had this server's URL is dead.
        """
        with self._database.write() as session:
            self._started_at = self._database.lease_now(session)
            self._add(session)
            predecessor = GatewayRow.url == self._url if self._url is not None else GatewayRow.owner.is_(None)
            if self._database.is_sqlite:
                predecessor = GatewayRow.owner.is_not(None)
            session.execute(delete(GatewayRow).where(GatewayRow.owner != self.owner, predecessor))
            others = session.scalars(select(GatewayRow).where(GatewayRow.owner != self.owner))
            return [Gateway(row.owner, row.url) for row in others]

    def renew(self) -> bool:
        """Extend this server's lease. Returns False if it had been given up: it is added again, but its calls may have
        been voided."""
        with self._database.write() as session:
            row = session.get(GatewayRow, self.owner)
            if row is None:
                self._add(session)
                return False
            row.lease_until = self._database.lease_now(session) + self._lease_s
            return True

    def leave(self) -> None:
        """Remove this server at its end: the work that it has left behind may be given up at once."""
        self._write(delete(GatewayRow).where(GatewayRow.owner == self.owner))

    def remove_dead(self) -> int:
        """Remove the others whose lease had run out at the last look already; returns how many."""
        with self._database.write() as session:
            expired_query = select(GatewayRow).where(
                GatewayRow.owner != self.owner, lease_ended(GatewayRow.lease_until, self._database.lease_now(session))
            )
            expired = {row.owner: row.lease_until for row in session.scalars(expired_query)}
            dead = [owner for owner, until in expired.items() if self._seen_expired.get(owner) == until]
            self._seen_expired = expired
            session.execute(delete(GatewayRow).where(GatewayRow.owner.in_(dead)))
            return len(dead)

    def runs_maintenance(self) -> bool:
        """Return whether this is the oldest of the servers that renew their leases: it alone sweeps."""
        with self._database.read() as session:
            row = session.get(GatewayRow, self.owner)
            if row is None:
                return False
            alive = ~lease_ended(GatewayRow.lease_until, self._database.lease_now(session))
            earlier = or_(
                GatewayRow.started_at < row.started_at,
                (GatewayRow.started_at == row.started_at) & (GatewayRow.owner < row.owner),
            )
            return not session.scalar(select(exists(select(GatewayRow.owner).where(alive, earlier))))

    def find(self, owner: str) -> Gateway | None:
        """Return a server that runs, or did so lately, None if there is none."""
        with self._database.read() as session:
            row = session.get(GatewayRow, owner)
        return None if row is None else Gateway(row.owner, row.url)

    def others(self) -> list[Gateway]:
        """List the other servers whose leases have not run out."""
        return [each for each in self.list_all() if each.alive and each.owner != self.owner]

    def list_all(self) -> list[GatewayReport]:
        """List every server that runs or did so lately, oldest first."""
        with self._database.read() as session:
            now = self._database.lease_now(session)
            alive = set(session.scalars(select(GatewayRow.owner).where(~lease_ended(GatewayRow.lease_until, now))))
            rows = session.scalars(select(GatewayRow).order_by(GatewayRow.started_at, GatewayRow.owner))
            return [row.to(GatewayReport, alive=row.owner in alive) for row in rows]

    def _add(self, session: Session) -> None:
        now = self._database.lease_now(session)
        started_at = now if self._started_at is None else self._started_at
        session.add(GatewayRow(owner=self.owner, url=self._url, started_at=started_at, lease_until=now + self._lease_s))


def lease_ended(lease_until: InstrumentedAttribute[float], now: float) -> ColumnElement[bool]:
    """Return whether a lease has run out, or would last longer than any: then it was written while the clock was ahead,
    and whoever lives renews it."""
    return or_(lease_until < now, lease_until > now + LONGEST_LEASE_S)


def live_owners() -> Select[str]:
    """Return the query of the owners that have a server."""
    return select(GatewayRow.owner)
