"""The calls that run on each of several gateways: so that a retry finds its call wherever that runs, and a key's limits
hold for all gateways together.

A call is claimed before it does anything. Claims of one key wait for each other, so two equal requests that arrive at
two gateways at once can't both run under one Idempotency-Key.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, delete, func, or_, select, true, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from server.accounts.calls import CallId
from server.accounts.db import REQUEST_LIMIT_S
from server.accounts.fingerprints import is_sent_alike
from server.accounts.gateways import live_owners
from server.accounts.ledger import lock_key
from server.accounts.store import Store
from server.accounts.tables import ClaimRow

Equal = Literal["any", "left"]  # any equal call, or only one whose client has left
WINDOW_S = 60.0  # of `per_minute`
# An equal call that ended since a retry has looked for recorded ones is found at its gateway.
LOOKED_UP_S = 2 * REQUEST_LIMIT_S


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """The calls that a key may have on all gateways together. None: no limit."""

    max_running: int
    per_minute: int | None


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The calls of a key: running on other gateways, begun in the last minute on all, and when the oldest of those will
    be a minute old."""

    running_elsewhere: int
    begun: int
    reset_s: float


class ClaimedElsewhere(Exception):
    """An equal call runs on the gateway `owner`."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class ClaimRefused(Exception):
    """The key has reached a limit: of the calls that it may begin in a minute if `per_minute`, else of running ones."""

    def __init__(self, counts: KeyCounts, *, per_minute: bool) -> None:
        super().__init__("per_minute" if per_minute else "max_running")
        self.counts = counts
        self.per_minute = per_minute


class ClaimStore(Store):
    """The claims of all gateways, as one of them (`owner`) makes them."""

    def begin(self, call: CallId, limits: ClaimLimits | None, *, find_equal: Equal | None) -> KeyCounts:
        """Claim the call for this gateway, and return the counts of its key's calls; `limits` None does not count it.
        `find_equal`: which equal calls without an Idempotency-Key are looked for, too. Raises ClaimedElsewhere and
        ClaimRefused."""
        with self._database.write() as session:
            lock_key(session, call.key_id)
            if owner := self._find_elsewhere(session, call, find_equal=find_equal):
                raise ClaimedElsewhere(owner)
            now = self._database.lease_now(session)
            counts = self._count(session, call.key_id, now)
            if limits is not None:
                here = self._running(session, call.key_id, ClaimRow.owner == self._owner)
                if here + counts.running_elsewhere >= limits.max_running:
                    raise ClaimRefused(counts, per_minute=False)
                if limits.per_minute is not None and counts.begun >= limits.per_minute:
                    raise ClaimRefused(counts, per_minute=True)
            session.add(ClaimRow(**asdict(call), owner=self._owner, counted=limits is not None, begun_at=now))
            return KeyCounts(counts.running_elsewhere, counts.begun + (limits is not None), counts.reset_s or WINDOW_S)

    def end(self, *call_ids: str) -> None:
        """Record that these calls have ended. They are counted until their minute is over."""
        with self._database.write() as session:
            now = self._database.lease_now(session)
            running = (ClaimRow.id.in_(call_ids), ClaimRow.ended_at.is_(None))
            session.execute(update(ClaimRow).where(*running).values(ended_at=now))

    def running_here(self) -> set[str]:
        """Return the ids of this gateway's claims that have not ended."""
        with self._database.read() as session:
            running = (ClaimRow.owner == self._owner, ClaimRow.ended_at.is_(None))
            return set(session.scalars(select(ClaimRow.id).where(*running)))

    def delete_ended(self) -> None:
        """Delete the claims that ended more than a minute ago, or were left by a dead gateway."""
        with self._database.write() as session:
            now = self._database.lease_now(session)
            lost = ClaimRow.owner.not_in(live_owners()) & ~_is_near(ClaimRow.begun_at, now, WINDOW_S)
            session.execute(delete(ClaimRow).where(or_(~_is_near(ClaimRow.ended_at, now, WINDOW_S), lost)))

    def mark_left(self, call_id: str) -> None:
        """Record that the client of a call has left, which goes on for a while."""
        self._write(update(ClaimRow).where(ClaimRow.id == call_id).values(client_left=True))

    def _find_elsewhere(self, session: Session, call: CallId, *, find_equal: Equal | None) -> str | None:
        if call.idempotency_key is not None:
            equal = ClaimRow.idempotency_key == call.idempotency_key
        elif find_equal is not None:
            equal = is_sent_alike(ClaimRow.fingerprint, call.fingerprint) & ClaimRow.idempotency_key.is_(None)
            equal &= ClaimRow.client_left if find_equal == "left" else true()
        else:
            return None
        same = (ClaimRow.key_id == call.key_id, ClaimRow.endpoint == call.endpoint, equal)
        now = self._database.lease_now(session)
        recent = or_(ClaimRow.ended_at.is_(None), _is_near(ClaimRow.ended_at, now, LOOKED_UP_S))
        lives = (ClaimRow.owner != self._owner, ClaimRow.owner.in_(live_owners()))
        query = select(ClaimRow.owner).where(*same, *lives, recent)
        return session.scalars(query.order_by(ClaimRow.begun_at.desc()).limit(1)).first()

    def _count(self, session: Session, key_id: str, now: float) -> KeyCounts:
        elsewhere = self._running(session, key_id, ClaimRow.owner != self._owner)
        recent = (ClaimRow.key_id == key_id, ClaimRow.counted, _is_near(ClaimRow.begun_at, now, WINDOW_S))
        begun, oldest = session.execute(select(func.count(), func.min(ClaimRow.begun_at)).where(*recent)).one()
        return KeyCounts(elsewhere, begun, oldest + WINDOW_S - now if begun else 0.0)

    def _running(self, session: Session, key_id: str, whose: ColumnElement[bool]) -> int:
        counted = (ClaimRow.key_id == key_id, ClaimRow.counted, whose)
        return session.scalars(select(func.count()).select_from(ClaimRow).where(*counted, *_RUNS)).one()


def _is_near(column: InstrumentedAttribute[Any], now: float, limit_s: float) -> ColumnElement[bool]:
    """Return whether a time is near. One that lies ahead by more was written while the clock was ahead, and is long
    over."""
    return column.between(now - limit_s, now + limit_s)


_RUNS = (ClaimRow.ended_at.is_(None), ClaimRow.owner.in_(live_owners()))
