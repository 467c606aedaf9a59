"""Times that are written down and lie ahead: a clock was ahead when they were written, or this one is behind.

Nobody can tell which. So what only looks a time up takes it for long past, what gives access ends it, and what deletes
by age dates it anew, as long as this clock is later than most keys are old. Whatever is believed wrongly then, nothing
is deleted before its time, and nothing stays for longer than twice its time.
"""

import structlog
from sqlalchemy import ColumnElement, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from server.accounts.tables import KeyRow
from server.clock import Clock

MARGIN_S = 3600.0  # by which the clocks of servers may differ

log = structlog.stdlib.get_logger("darkroom.database")


def is_near(
    column: InstrumentedAttribute[float] | InstrumentedAttribute[float | None], clock: Clock, limit_s: float
) -> ColumnElement[bool]:
    """Return the condition that a time lies at most `limit_s` back, or ahead. The system's clock may have been set
    since, so it is enough if one of the clocks says so."""
    return or_(*(column.between(now - limit_s, now + limit_s) for now in (clock.now(), clock.steady())))


def is_past(column: InstrumentedAttribute[float], clock: Clock, margin_s: float = MARGIN_S) -> ColumnElement[bool]:
    """Return the condition that a time is no later than now, but for clocks that differ a little: so the latest of
    several is none of a time when the clock was ahead."""
    return column <= clock.latest() + margin_s


def reset_future_times(session: Session, column: InstrumentedAttribute[float], clock: Clock, max_age_s: float) -> None:
    """Date anew, by this moment, the rows that lie ahead by more than the age at which they are deleted: else they
    would stay until that time has come, and an age longer."""
    now = clock.latest()
    ahead = column > now + max_age_s
    if not session.scalar(select(exists().where(ahead))):
        return
    keys, later_keys = session.execute(select(func.count(), func.count().filter(KeyRow.created_at > now))).one()
    if 2 * later_keys > keys:
        log.warning("this clock is behind: most keys are of later than now", table=column.class_.__tablename__)
        return
    session.execute(update(column.class_).where(ahead).values({column.key: now}))
    log.warning("rows that were written while the clock was ahead are dated now", table=column.class_.__tablename__)
