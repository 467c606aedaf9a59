"""Sessions of the console: a browser keeps a random cookie in place of a key. All servers of the database know them."""

import secrets

from sqlalchemy import ColumnElement, and_, delete, select

from server.accounts.keys import hash_secret
from server.accounts.store import Store
from server.accounts.tables import ConsoleSessionRow

LIFETIME_S = 12 * 3600
MOST_SESSIONS = 50  # of one subject: others can not end them


class ConsoleSessions(Store):
    """The sessions of the browsers that have signed in. A subject has at most MOST_SESSIONS: a new one ends its
    oldest."""

    def open(self, subject: str) -> str:
        """Open a session, and return its cookie's value, of 256 random bits. A browser's oldest session ends if there
        are too many."""
        cookie = secrets.token_urlsafe(32)
        with self._database.write() as session:
            now = self._database.lease_now(session)
            session.execute(delete(ConsoleSessionRow).where(~_is_open(now)))
            mine = ConsoleSessionRow.subject == subject
            newest = select(ConsoleSessionRow.ends_at).where(mine).order_by(ConsoleSessionRow.ends_at.desc())
            if (oldest := session.scalar(newest.offset(MOST_SESSIONS - 1).limit(1))) is not None:
                session.execute(delete(ConsoleSessionRow).where(mine, ConsoleSessionRow.ends_at <= oldest))
            row = ConsoleSessionRow(cookie_hash=hash_secret(cookie), subject=subject, ends_at=now + LIFETIME_S)
            session.add(row)
        return cookie

    def subject(self, cookie: str) -> str | None:
        """Return the subject of a session; None for one that has ended."""
        with self._database.read() as session:
            mine = ConsoleSessionRow.cookie_hash == hash_secret(cookie)
            now = self._database.lease_now(session)
            return session.scalar(select(ConsoleSessionRow.subject).where(mine, _is_open(now)))

    def close(self, cookie: str) -> None:
        """Delete the session of this cookie."""
        self._write(delete(ConsoleSessionRow).where(ConsoleSessionRow.cookie_hash == hash_secret(cookie)))


def _is_open(now: float) -> ColumnElement[bool]:
    """Return the condition that a session goes on: one that would for longer than any was opened while the clock was
    ahead."""
    return and_(ConsoleSessionRow.ends_at > now, ConsoleSessionRow.ends_at <= now + LIFETIME_S)
